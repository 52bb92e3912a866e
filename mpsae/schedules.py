"""Learning rate and sparsity by update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from mpsae.checks import number, one_of, whole

Shape = Literal["cosine", "stable", "constant"]


@dataclass(frozen=True)
class LearningRate:
    """The learning rate by update: a linear warm-up, then a shape.

    >>> LearningRate(1e-3)                                             # warm-up, then cosine to 0
    >>> LearningRate(3e-2, "stable", warmup=100, final=0.1)            # the synthetic study's
    >>> LearningRate(5e-4, warmup=1000, first=0.002, final=0.002)      # the vision study's: 1e-6 → 5e-4 → 1e-6

    `"cosine"` falls over the whole length, `"stable"` stays and falls linearly over the last `cooldown` of it,
    `"constant"` stays.
    """

    peak: float
    """The learning rate after the warm-up."""
    shape: Shape = "cosine"
    """What follows the warm-up."""
    warmup: int = 0
    """Updates of linear rise."""
    first: float = 0.0
    """Share of the peak before the first update, where there is a warm-up."""
    final: float = 0.0
    """Share of the peak after the last update; `"constant"` keeps the peak."""
    cooldown: float = 0.2
    """Share of all updates over which `"stable"` falls."""

    def __post_init__(self) -> None:
        number("the peak of a LearningRate", self.peak)
        one_of("the shape of a LearningRate", self.shape, get_args(Shape))
        whole("the warmup of a LearningRate", self.warmup, 0)
        for name in ("first", "final", "cooldown"):
            if number(f"the {name} of a LearningRate", getattr(self, name), "a share") > 1:
                raise ValueError(f"the {name} of a LearningRate must be a share, at most 1; got {getattr(self, name)}")

    def at(self, update: int, updates: int) -> float:
        """The rate of this update, of `updates` in all, counted from 0."""
        if update < self.warmup:
            return self.peak * (self.first + (1 - self.first) * (update + 1) / self.warmup)
        if self.shape == "constant":
            return self.peak
        if self.shape == "cosine":
            done = (update - self.warmup) / max(updates - self.warmup, 1)
            fallen = 0.5 - 0.5 * math.cos(math.pi * min(done, 1.0))
        else:
            length = max(self.cooldown * updates, 1e-9)
            fallen = min(max((update - (updates - length)) / length, 0.0), 1.0)
        return self.peak * (1 - (1 - self.final) * fallen)


@dataclass(frozen=True)
class Points:
    """A number by update: linear between points (update, value), constant before the first and after the last.

    >>> Points((0, 3.0), (1000, 3.0), (1000, 1.36))      # the synthetic study's ℓ0 of BatchTopK: a step at 1,000
    """

    points: tuple[tuple[int, float], ...]

    def __init__(self, *points: tuple[int, float]) -> None:
        checked = tuple((whole("an update of Points", u, 0), number("a value of Points", v)) for u, v in points)
        if not checked or list(checked) != sorted(checked, key=lambda point: point[0]):
            raise ValueError(f"Points are at least one (update, value), in the order of the updates; got {points}")
        object.__setattr__(self, "points", checked)

    def at(self, update: int) -> float:
        """The value at this update; where two points share one, the later counts."""
        before = [point for point in self.points if point[0] <= update]
        after = [point for point in self.points if point[0] > update]
        if not before or not after:
            return (before or after[:1])[-1][1]
        (start, low), (end, high) = before[-1], after[0]
        return low + (high - low) * (update - start) / (end - start)

"""The learning rate by update."""

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

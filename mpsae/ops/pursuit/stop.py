"""When one input's pursuit ends."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mpsae.checks import flag, number, whole
from mpsae.ops.pursuit.reference import row_norms

LIMITS = ("residual", "relative", "coefficient", "cosine")
"""The rules of `Stop` that are numbers of the data, in the order in which an SAE keeps them."""


@dataclass(frozen=True)
class Stop:
    """When one input's pursuit ends: whichever rule comes first; a rule at 0 is off.

    >>> Stop(32)                                   # 32 picks
    >>> Stop(64, relative=0.1)                     # as many as each input needs for ‖r‖ < 0.1 ‖x‖, at most 64
    >>> Stop(40, coefficient=2.0)                  # while something significant, in units of x, is left
    >>> Stop(21, residual=0.05, repeat=True)       # the rule of the paper's synthetic study

    The first two rules are tested before a pick, the next two on the pick itself, which is not taken if it fails.
    """

    steps: int
    """At most this many picks."""
    residual: float = 0.0
    """End when ‖r‖ is below this."""
    relative: float = 0.0
    """End when ‖r‖ is below this share of what it was at the start."""
    coefficient: float = 0.0
    """End when the best correlation is at most this."""
    cosine: float = 0.0
    """End when the best correlation is below this share of ‖r‖."""
    repeat: bool = False
    """End after a pick that was in the support already."""

    def __post_init__(self) -> None:
        # A number of numpy's becomes the plain one that it is.
        object.__setattr__(self, "steps", whole("the steps of a Stop", self.steps, 1, "a pursuit takes at least one"))
        for name in LIMITS:
            object.__setattr__(self, name, number(f"the {name} of a Stop", getattr(self, name), "0 turns the rule off"))
        if self.relative > 1:
            raise ValueError(f"the relative of a Stop is a share of the start, at most 1; got {self.relative!r}")
        flag("the repeat of a Stop", self.repeat)

    @classmethod
    def of(cls, stop: Stop | int) -> Stop:
        """A `Stop` as it is; a whole number as that many steps."""
        return stop if isinstance(stop, Stop) else cls(whole("stop", stop, 1, "that many steps, or a Stop"))

    @property
    def limits(self) -> tuple[float, ...]:
        """The rules that are numbers of the data, in the order of `LIMITS`."""
        return tuple(float(getattr(self, name)) for name in LIMITS)

    def __repr__(self) -> str:
        rules = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[1:] if getattr(self, f.name)]
        return f"Stop({', '.join([str(self.steps), *rules])})"


@torch.no_grad()
def make_floors(x: Tensor, limits: tuple[float | Tensor, ...]) -> Tensor:
    """What ‖r‖, the best correlation and its cosine must reach for a pick, for each input: [..., 3].

    `limits` are numbers or float64 tensors without dimensions, in the order of `LIMITS`. A correlation also has to
    stand out of rounding: after a pick its own is ±ε, and where all others are negative noise would be picked. The
    floors of an input with NaN or Inf are NaN; those of any other are finite.
    """
    residual, relative, coefficient, cosine = limits
    kind = torch.finfo(x.dtype)
    norms = row_norms(x)  # float64, so that no limit and no norm leaves the range before the clamp below
    noise = 16 * kind.eps * norms
    floors = torch.stack(
        [(norms * relative).clamp(min=residual), noise.clamp(min=coefficient), norms * 0 + cosine], dim=-1
    )
    return floors.clamp(max=kind.max).where(norms.isfinite()[..., None], torch.nan).to(x.dtype)

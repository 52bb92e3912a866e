"""Steering a penalty toward a wanted ℓ0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mpsae.checks import flag, number, whole


@dataclass(frozen=True)
class Steering:
    """How the weight of an ℓ1 penalty follows the ℓ0 of the batches.

    >>> ReLUSAE(20, 20, l0=1.36, l1=0.1, steering=Steering(rate=3e-4, ramp=3000))     # the synthetic study's
    >>> ReLUSAE(768, 19200, l0=32, steering=Steering(one_sided=True))                # the vision study's
    """

    rate: float = 3e-4
    """Each update the weight grows or shrinks by this share."""
    ramp: int = 0
    """Updates over which the weight rises from 0; it is steered after them."""
    one_sided: bool = False
    """Only raised, in updates whose batch exceeds the wanted ℓ0; never lowered."""

    def __post_init__(self) -> None:
        if number("the rate of Steering", self.rate) >= 1:
            raise ValueError(f"the rate of Steering must be a share below 1; got {self.rate!r}")
        whole("the ramp of Steering", self.ramp, 0)
        flag("the one_sided of Steering", self.one_sided)

    def next_weight(self, weight: Tensor, l0: Tensor, wanted: float, updates: int) -> Tensor:
        """The weight after a batch of mean `l0`; unmoved by a batch without inputs, whose mean is NaN."""
        if updates < self.ramp:
            return weight
        lower = 1.0 if self.one_sided else 1 - self.rate
        factor = torch.where(l0 > wanted, 1 + self.rate, torch.where(l0 <= wanted, lower, 1.0))
        return weight * factor.to(weight.dtype)

    def share(self, updates: int) -> float:
        """How much of the weight holds at this update."""
        return min((updates + 1) / self.ramp, 1.0) if self.ramp else 1.0

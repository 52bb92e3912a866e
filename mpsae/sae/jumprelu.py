"""JumpReLU (Rajamanoharan et al. 2024): a threshold for every atom, learned through a straight-through gradient."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from mpsae.checks import number
from mpsae.sae import losses
from mpsae.sae.batchtopk import wanted_l0
from mpsae.sae.contract import Output, Shared
from mpsae.sae.linear import LinearSAE


class JumpReLUSAE(LinearSAE):
    """z = p · H(p − θ) with p = ReLU(pre); the loss adds weight · (ℓ0 / wanted − 1)².

    >>> JumpReLUSAE(768, 19200, l0=32)

    θ is learned for every atom (as its logarithm); its gradient is that of a rectangle of width `bandwidth` around the
    jump. Both are in units of the pre-activations: `threshold` is where θ starts.
    """

    kind = "jumprelu"
    scheduled = ("l0",)
    atomwise = (*LinearSAE.atomwise, "log_threshold")

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        l0: float,
        *,
        weight: float = 1.0,
        threshold: float = 0.1,
        bandwidth: float = 0.1,
        centred: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(d_in, d_sae, centred=centred, **shared)
        self.l0 = wanted_l0(l0, d_sae)
        self.weight = number("weight", weight)
        self.threshold, self.bandwidth = number("threshold", threshold), number("bandwidth", bandwidth)
        for name in ("threshold", "bandwidth"):
            if not getattr(self, name):
                raise ValueError(f"the {name} of JumpReLUSAE must be above 0; got 0")
        self.log_threshold = nn.Parameter(torch.full((d_sae,), math.log(self.threshold)))

    def _activate(self, pre: Tensor) -> Tensor:
        return losses.jump(pre, self.log_threshold.exp(), self.bandwidth)[0]

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        assert output.pre is not None
        gate = losses.jump(output.pre, self.log_threshold.exp(), self.bandwidth)[1]
        l0 = gate.sum(-1).mean()
        return super().losses(x, output) | {"l0": self.weight * (l0 / self.l0 - 1).square()}

    def _renew_(self, mask: Tensor, directions: Tensor) -> None:
        super()._renew_(mask, directions)
        self.log_threshold.masked_fill_(mask, math.log(self.threshold))

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        super()._fold_(shift, scale)
        self.log_threshold.sub_(scale.log())
        self.threshold, self.bandwidth = self.threshold / float(scale), self.bandwidth / float(scale)

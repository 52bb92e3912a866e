"""ReLU and an ℓ1 penalty (Bricken et al. 2023; Cunningham et al. 2023): what the paper calls Vanilla."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from mpsae.checks import number, option
from mpsae.sae import losses
from mpsae.sae.batchtopk import wanted_l0
from mpsae.sae.contract import Output, Shared
from mpsae.sae.controllers import Steering
from mpsae.sae.linear import LinearSAE


class ReLUSAE(LinearSAE):
    """z = ReLU(pre); the loss adds λ Σ_j z_j ‖d_j‖.

    >>> ReLUSAE(768, 19200, l1=0.3)                                      # a constant λ
    >>> ReLUSAE(768, 19200, l0=32)                                       # λ starts at l1 and is steered toward ℓ0 32
    >>> ReLUSAE(768, 19200, l0=32, steering=Steering(one_sided=True))    # λ is only raised, while ℓ0 exceeds 32
    """

    kind = "relu"
    scheduled = ("l0",)
    options = LinearSAE.options | {"steering": Steering}
    l1_weight: Tensor

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        *,
        l0: float | None = None,
        l1: float | None = None,
        steering: Steering | None = None,
        centred: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(d_in, d_sae, centred=centred, **shared)
        if l0 is None and l1 is None:
            raise ValueError("ReLUSAE needs l0, the wanted atoms an input, or l1, a constant weight; got neither")
        if l0 is None and steering is not None:
            raise ValueError("steering goes toward a wanted l0; got none: give l0, or leave steering out")
        self.l0 = None if l0 is None else wanted_l0(l0, d_sae)
        self.l1 = 0.1 if l1 is None else number("l1", l1)
        if l0 is not None and not self.l1:
            raise ValueError("l1 is where the steered weight starts, and 0 stays 0: give a number above 0")
        self.steering = option("steering", steering, Steering) or (Steering() if l0 is not None else None)
        self.register_buffer("l1_weight", torch.tensor(self.l1))

    def _activate(self, pre: Tensor) -> Tensor:
        return pre.relu()

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        terms = super().losses(x, output)
        weight = self.l1_weight * (1.0 if self.steering is None else self.steering.share(self.updates))
        assert isinstance(output.acts, Tensor)
        return terms | {"l1": weight * losses.l1(output.acts, self.dictionary)}

    def schedule_(self, name: str, value: float) -> None:
        if self.steering is None:
            raise ValueError("a constant l1 goes toward no l0, so there is nothing to schedule: make it with l0")
        super().schedule_(name, value)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        super()._fold_(shift, scale)
        self.l1_weight.div_(scale)
        self.l1 /= float(scale)

    @torch.no_grad()
    def update_(self, x: Tensor, output: Output) -> Tensor | None:
        if self.l0 is not None and self.steering is not None:
            l0 = losses.mean_l0(output.acts)
            self.l1_weight.copy_(self.steering.next_weight(self.l1_weight, l0, self.l0, self.updates))
        return super().update_(x, output)

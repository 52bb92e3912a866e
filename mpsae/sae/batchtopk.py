"""BatchTopK (Bussmann et al. 2024): the ℓ0 · B largest pre-activations of a batch; a learned threshold at inference."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from mpsae.checks import number
from mpsae.sae.contract import Output, Shared
from mpsae.sae.linear import LinearSAE


class BatchTopKSAE(LinearSAE):
    """z = the int(ℓ0 · B) + 1 largest of ReLU(pre) over a training batch; at inference what exceeds a threshold.

    >>> BatchTopKSAE(768, 19200, l0=32)

    The threshold is a running mean, with `decay`, of the smallest activation that each batch kept. It holds in
    `encode`, in `at` and whenever the SAE is not in training mode. `l0` may be set between updates.
    """

    kind = "batchtopk"
    scheduled = ("l0",)
    threshold: Tensor

    def __init__(
        self, d_in: int, d_sae: int, l0: float, *, decay: float = 0.99, centred: bool = True, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(d_in, d_sae, centred=centred, **shared)
        self.l0 = wanted_l0(l0, d_sae)
        self.decay = share("decay", decay)
        self.register_buffer("threshold", torch.zeros(()))

    def _activate(self, pre: Tensor) -> Tensor:
        return batch_largest(pre, self.l0) if self.training else above(pre, self.threshold)

    @torch.no_grad()
    def update_(self, x: Tensor, output: Output) -> Tensor | None:
        assert isinstance(output.acts, Tensor)
        self.threshold.copy_(next_threshold(self.threshold, output.acts, self.decay, self.updates))
        return super().update_(x, output)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        super()._fold_(shift, scale)
        self.threshold.div_(scale)


def batch_largest(pre: Tensor, l0: float) -> Tensor:
    """ReLU(pre) [..., d_sae] where it is among the int(l0 · B) + 1 largest of all B inputs; else 0."""
    acts = pre.relu()
    flat = acts.flatten()
    if not flat.numel():
        return acts
    count = min(int(l0 * (flat.numel() // acts.shape[-1])) + 1, flat.numel())
    smallest = flat.detach().nan_to_num(0.0).topk(count).values[-1]  # NaN takes nobody's place
    return acts.where(acts >= smallest, 0.0)


def above(pre: Tensor, threshold: Tensor) -> Tensor:
    """ReLU(pre) where it exceeds the threshold; else 0."""
    acts = pre.relu()
    return acts.where(acts > threshold, 0.0)


def next_threshold(threshold: Tensor, acts: Tensor, decay: float, updates: int) -> Tensor:
    """The running mean with the smallest active value of this batch in it; unmoved by a batch with none."""
    if not acts.numel():
        return threshold
    smallest = acts.where(acts > 0, torch.inf).amin()
    mean = smallest if updates == 0 else decay * threshold + (1 - decay) * smallest
    return mean.where(smallest.isfinite(), threshold).to(threshold.dtype)


def wanted_l0(l0: float, d_sae: int) -> float:
    """`l0`, if so many atoms an input can be wanted."""
    if not 0 < number("l0", l0) <= d_sae:
        raise ValueError(f"l0 is how many atoms an input is written with, above 0 and at most {d_sae}; got {l0}")
    return float(l0)


def share(name: str, value: float) -> float:
    """`value`, if it is in [0, 1)."""
    if number(name, value) >= 1:
        raise ValueError(f"{name} must be in [0, 1); got {value}")
    return float(value)

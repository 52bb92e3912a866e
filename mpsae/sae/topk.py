"""TopK (Makhzani and Frey 2014; Gao et al. 2024): the k largest pre-activations, where they are positive."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from mpsae.checks import number, whole
from mpsae.codes import Codes
from mpsae.sae import losses
from mpsae.sae.contract import Output, Shared
from mpsae.sae.linear import LinearSAE


class TopKSAE(LinearSAE):
    """z = the k largest of ReLU(pre).

    >>> TopKSAE(768, 19200, k=32)
    >>> TopKSAE(768, 19200, k=32, multi=1 / 8)      # Multi-TopK: the loss adds an eighth of the error at 4 k
    """

    kind = "topk"
    scheduled = ("k",)

    def __init__(
        self, d_in: int, d_sae: int, k: int, *, multi: float = 0.0, centred: bool = True, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(d_in, d_sae, centred=centred, **shared)
        self._read_with_k_(whole("k", k, 1))
        self.multi = number("multi", multi)

    def _read_with_k_(self, k: int) -> None:
        if k > self.d_sae:
            raise ValueError(f"k is at most the number of atoms, {self.d_sae}; got {k}")
        self.k = k

    def _activate(self, pre: Tensor) -> Codes:
        return _largest(pre, self.k)

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        terms = super().losses(x, output)
        if self.multi:
            assert output.pre is not None
            wide = _largest(output.pre, min(4 * self.k, self.d_sae))
            terms["multi"] = self.multi * losses.squared_error(self._residual_of(x, wide))
        return terms


def _largest(pre: Tensor, k: int) -> Codes:
    """The k largest [..., k] of pre [..., d_sae], where positive."""
    values, indices = pre.topk(k, dim=-1)
    used = values > 0
    return Codes(values.where(used, 0.0), indices.where(used, 0).int(), used.sum(-1).int(), pre.shape[-1], "magnitude")

"""What SAEs have in common whose encoder is one linear map and an activation."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from mpsae.checks import flag
from mpsae.codes import Codes
from mpsae.sae.contract import SAE, Encoding, Shared


class LinearSAE(SAE):
    """pre = W (x − b) + c, codes = activation(pre); a variant writes `_activate`.

    W starts at the atoms, c at 0. With `centred=False` the encoder reads x itself, as in the authors' synthetic code.
    Norms of the atoms are free unless told otherwise: bringing them to 1 after every update costs recovery.
    """

    atomwise = ("atoms", "encoder", "encoder_bias")
    k: Any = None
    """Set by `at`: the k largest of what is active."""

    def __init__(self, d_in: int, d_sae: int, *, centred: bool = True, **shared: Unpack[Shared]) -> None:
        shared.setdefault("constraint", "free")
        super().__init__(d_in, d_sae, **shared)
        self.centred = flag("centred", centred)
        self.encoder = nn.Parameter(self.atoms.detach().clone())
        self.encoder_bias = nn.Parameter(torch.zeros(d_sae))

    def _activate(self, pre: Tensor) -> Codes | Tensor:
        """Codes, or activations [..., d_sae], of pre-activations [..., d_sae]."""
        raise NotImplementedError

    def _encode(self, x: Tensor) -> Encoding:
        pre = self._pre(x)
        acts = self._activate(pre)
        return Encoding(acts if self.k is None or isinstance(acts, Codes) else Codes.from_dense(acts, self.k), pre)

    def _pre(self, x: Tensor) -> Tensor:
        x, encoder, encoder_bias, bias = self._wide(x, self.encoder, self.encoder_bias, self.bias)
        return (x - bias if self.centred else x) @ encoder.T + encoder_bias  # [..., d_sae]

    def _encode_revived(self, x: Tensor) -> Encoding:
        encoding = self._encode(x)
        if self.revival is None or self.revival.how != "added" or not self.training or encoding.pre is None:
            return encoding
        pre = encoding.pre + self.revival.weight * ~self._fired(encoding.acts)
        return Encoding(self._activate(pre), pre)

    def _read_with_k_(self, k: int) -> None:
        self.k = k

    def settings(self) -> dict[str, Any]:
        if self.k is not None and "k" not in self.setting_names():
            raise ValueError(
                "read at another k this is no SAE of its own: save the SAE, and call at(k=…) once it is loaded"
            )
        return super().settings()

    def _renew_(self, mask: Tensor, directions: Tensor) -> None:
        super()._renew_(mask, directions)
        self.encoder.copy_(directions.where(mask[:, None], self.encoder.to(directions.dtype)))
        self.encoder_bias.masked_fill_(mask, 0.0)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        # z / scale = activation(W (x − shift − b / scale) + c / scale); W shift joins c where x is not centred.
        super()._fold_(shift, scale)
        self.encoder_bias.div_(scale)
        if not self.centred:
            self.encoder_bias.sub_(self.encoder @ shift.to(self.encoder.dtype))

"""MP-SAE: an encoder that unrolls matching pursuit on the decoder's own atoms."""

from __future__ import annotations

from typing import Unpack, get_args

import torch
from torch import Tensor

from mpsae.checks import number, one_of
from mpsae.ops.pursuit import Select, Stop, pursue_to_floors
from mpsae.ops.pursuit.stop import LIMITS, make_floors
from mpsae.sae.contract import SAE, Encoding, Shared


class MatchingPursuitSAE(SAE):
    """Picks one atom at a time from what is still unexplained.

    >>> sae = MatchingPursuitSAE(d_in=768, d_sae=19200, stop=32)
    >>> codes = sae.encode(x)                                  # 32 picks an input, in order
    >>> sae.at(k=8).encode(x)                                  # its first 8 picks
    >>> sae.at(stop=Stop(64, relative=0.1)).encode(x)          # as many as each input needs
    """

    kind = "mp"
    scheduled = ("k", *LIMITS)
    setting_buffers = ("bounds",)
    options = SAE.options | {"stop": Stop}
    bounds: Tensor

    def __init__(
        self, d_in: int, d_sae: int, stop: Stop | int, *, select: Select = "positive", **shared: Unpack[Shared]
    ) -> None:
        super().__init__(d_in, d_sae, **shared)
        self.select: Select = one_of("select", select, get_args(Select))
        if self.revival is not None and self.revival.how == "added":
            raise ValueError('a pursuit has no pre-activations to add to: use Revival(how="gradient")')
        # Schedules write the bounds in place; float64, so that a bound read back is the number that was given.
        self.register_buffer("bounds", torch.zeros(len(LIMITS), dtype=torch.float64))
        self._read_with_stop_(Stop.of(stop))

    @property
    def stop(self) -> Stop:
        """When one input's pursuit ends; reads the bounds, which waits for the device."""
        return Stop(self.k, *self.bounds.tolist(), repeat=self.repeat)

    @property
    def _ignores_sign(self) -> bool:
        return self.select == "absolute"

    def _encode(self, x: Tensor) -> Encoding:
        x, atoms, bias = self._wide(x, self.dictionary, self.bias)
        centred = x - bias
        found = self._pursue(
            centred,
            atoms,
            make_floors(centred, self.bounds.unbind()),
            steps=self.k,
            repeat=self.repeat,
            select=self.select,
        )
        return Encoding(found.codes, residual=found.residual)

    _pursue = staticmethod(pursue_to_floors)

    def _read_with_k_(self, k: int) -> None:
        self.k = k

    def _read_with_stop_(self, stop: Stop) -> None:
        self.k, self.repeat = stop.steps, stop.repeat
        self.bounds = torch.tensor(stop.limits, dtype=torch.float64, device=self.bounds.device)

    def schedule_(self, name: str, value: float) -> None:
        if name in LIMITS:
            self.bounds[..., LIMITS.index(name)].fill_(number(name, value))
        else:
            super().schedule_(name, value)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        super()._fold_(shift, scale)
        for name in ("residual", "coefficient"):  # the rules in units of the input
            self.bounds[LIMITS.index(name)] /= scale

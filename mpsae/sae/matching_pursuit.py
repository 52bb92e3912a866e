"""MP-SAE: an encoder that unrolls matching pursuit on the decoder's own atoms."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Self, get_args

import torch
from torch import Tensor

from mpsae.checks import one_of
from mpsae.ops.pursuit import Select, Stop, pursue_to_floors
from mpsae.ops.pursuit.stop import LIMITS, make_floors
from mpsae.sae.contract import SAE, Constraint, Encoding


class MatchingPursuitSAE(SAE):
    """Picks one atom at a time from what is still unexplained.

    >>> sae = MatchingPursuitSAE(d_in=768, d_sae=19200, stop=32)
    >>> codes = sae.encode(x)                                  # 32 picks an input, in order
    >>> sae.at(k=8).encode(x)                                  # its first 8 picks
    >>> sae.at(stop=Stop(64, relative=0.1)).encode(x)          # as many as each input needs
    """

    kind = "mp"
    setting_buffers = ("bounds",)
    bounds: Tensor

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        stop: Stop | int,
        *,
        constraint: Constraint = "sphere",
        select: Select = "positive",
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(d_in, d_sae, constraint=constraint, bias=bias, seed=seed)
        self.select: Select = one_of("select", select, get_args(Select))
        # Schedules write the bounds in place; float64, so that a bound read back is the number that was given.
        self.register_buffer("bounds", torch.zeros(len(LIMITS), dtype=torch.float64))
        self._read_with_stop_(Stop.of(stop))

    @property
    def stop(self) -> Stop:
        """When one input's pursuit ends; reads the bounds, which waits for the device."""
        return Stop(self.k, *self.bounds.tolist(), repeat=self.repeat)

    def _encode(self, x: Tensor) -> Encoding:
        x, atoms, bias = self._wide(x, self.atoms, self.bias)
        centred = x - bias
        found = pursue_to_floors(
            centred,
            atoms,
            make_floors(centred, self.bounds.unbind()),
            steps=self.k,
            repeat=self.repeat,
            select=self.select,
        )
        return Encoding(found.codes, residual=found.residual)

    def _read_with_k_(self, k: int) -> None:
        self.k = k

    def _read_with_stop_(self, stop: Stop) -> None:
        self.k, self.repeat = stop.steps, stop.repeat
        self.bounds = torch.tensor(stop.limits, dtype=torch.float64, device=self.bounds.device)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"stop": asdict(self.stop), "select": self.select}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, stop={self.stop}, select={self.select!r}"

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        stop = settings["stop"]
        if not isinstance(stop, dict) or stop.keys() != asdict(Stop(1)).keys():
            raise ValueError(f"stop must have the keys {', '.join(asdict(Stop(1)))}; got {stop!r}")
        arguments: dict[str, Any] = settings | {"stop": Stop(**stop)}
        return cls(**arguments)

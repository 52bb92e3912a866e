"""Atoms made anew: the unused, and of two that are nearly the same the one that is used less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mpsae.checks import number, whole

if TYPE_CHECKING:
    from mpsae.sae.contract import SAE

ROWS = 4096
"""Atoms compared with all others at once; bounds the memory of the comparison."""


@dataclass(frozen=True)
class Reseed:
    """Every so many updates, unused and duplicate atoms start again as what the SAE reconstructs worst.

    >>> MatchingPursuitSAE(64, 256, 5, reseed=Reseed(every=200, bound=0.7, until=4500))
    """

    every: int = 500
    """Updates between two looks; an atom that fired for no input since the last one is unused."""
    bound: float = 0.6
    """Of two atoms with a cosine above this, the one that fired less is a duplicate."""
    until: int | None = None
    """The last update at which atoms are made anew; three quarters of training is a good choice."""

    def __post_init__(self) -> None:
        whole("the every of Reseed", self.every, 1)
        number("the bound of Reseed", self.bound, "a cosine; above 1 nothing is a duplicate")
        whole("the until of Reseed", 0 if self.until is None else self.until, 0)

    def is_due(self, updates: int) -> bool:
        """Whether atoms are made anew after this update."""
        return updates % self.every == 0 and (self.until is None or updates <= self.until)


def choose(atoms: Tensor, fired: Tensor, bound: float, ignores_sign: bool = False) -> Tensor:
    """Which atoms to make anew [d_sae]: never fired, or above `bound` with one that fired more (ties: is earlier)."""
    atoms, place = normalize(atoms, dim=-1), torch.arange(len(atoms), device=atoms.device)
    duplicates = []
    for rows in place.split(ROWS):
        cosines = atoms[rows] @ atoms.T  # [rows, d_sae]
        similar = (cosines.abs() if ignores_sign else cosines) > bound
        own, others = fired[rows, None], fired[None]
        used_more = (others > own) | ((others == own) & (place < rows[:, None]))
        duplicates.append((similar & used_more).any(-1))
    return torch.cat(duplicates) | (fired == 0)


def worst_directions(x: Tensor, residual: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors [d_sae, d_in] for the atoms in `mask`, each along an input of its own, the worst written first.

    x (centred) and residual [B, d_in]. The mask that comes back lacks the atoms for which no input was left.
    """
    if not len(x):
        return mask[:, None].to(x.dtype).expand(-1, x.shape[-1]), mask & False
    errors = residual.square().sum(-1).nan_to_num(0.0, posinf=0.0)
    worst = errors.argsort(descending=True, stable=True)  # [B]
    turn = mask.long().cumsum(0) - 1  # the how-manieth to be made anew
    row = worst[turn.clamp(0, len(worst) - 1)]
    return normalize(x[row].nan_to_num(0.0), dim=-1), mask & (turn < len(worst)) & (errors[row] > 0)


@torch.no_grad()
def clear_moments_(optimizer: torch.optim.Optimizer, sae: SAE, mask: Tensor | None) -> None:
    """Forget what the optimiser remembers of the atoms in `mask`, as `update_` gives it: [d_sae], or [R, d_sae]."""
    if mask is None:
        return
    for name in sae.atomwise:
        parameter = sae.get_parameter(name)
        for moment in optimizer.state.get(parameter, {}).values():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape:
                moment.masked_fill_(mask.reshape(*mask.shape, *[1] * (moment.ndim - mask.ndim)), 0.0)

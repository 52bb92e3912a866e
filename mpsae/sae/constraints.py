"""What norms the atoms may have, and gradients that leave them alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Constraint = Literal["sphere", "ball", "free"]


def constrained(atoms: Tensor, constraint: Constraint) -> Tensor:
    """The atoms [d_sae, d_in] brought to norm 1 (`"sphere"`), to norm at most 1 (`"ball"`), or as they are."""
    if constraint == "free":
        return atoms
    norms = atoms.norm(dim=-1, keepdim=True)
    return atoms / (norms.clamp(min=torch.finfo(norms.dtype).tiny) if constraint == "sphere" else norms.clamp(min=1.0))


def tangent(atoms: Tensor) -> Tensor:
    """The atoms, to the bit; the gradient that flows back through them has lost its part along each atom."""
    fixed = atoms.detach()
    direction = normalize(fixed, dim=-1)
    change = atoms - fixed  # 0, but the gradient goes through it
    return fixed + (change - (change * direction).sum(-1, keepdim=True) * direction)

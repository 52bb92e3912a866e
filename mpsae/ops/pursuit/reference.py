"""Matching pursuit in plain torch: the definition that every kernel answers to, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from mpsae.ops.runs import as_table


def pursue(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, repeat: bool, select: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """values, indices [R, N, steps], lengths [R, N], residual [R, N, d_in] of x [R, N, d_in], atoms [R, d_sae, d_in].

    floors [R, N, 3]: what ‖r‖, the best correlation (not equal to it) and its cosine with r must reach for a pick.
    """
    table, start = as_table(atoms)
    values = x.new_zeros(*x.shape[:2], steps)
    indices = torch.zeros_like(values, dtype=torch.int32)
    lengths = torch.zeros_like(indices[..., 0])
    norm_floor, value_floor, cosine_floor = floors.unbind(-1)  # [R, N] each
    going = value_floor.isfinite()  # an input with NaN or Inf gets no picks and a NaN residual
    residual = x.where(going[..., None], torch.nan)
    for t in range(steps):
        correlations = residual @ atoms.mT  # [R, N, d_sae]
        pick = (correlations.abs() if select == "absolute" else correlations).argmax(-1)  # ties: the lowest index
        atom = embedding(pick + start, table)  # [R, N, d_in]
        value = (residual * atom).sum(-1)
        norm = row_norms(residual)
        size = value if select == "positive" else value.abs()
        going = going & (norm >= norm_floor) & (size > value_floor) & (size >= cosine_floor * norm)
        if residual.device.type == "cpu" and not going.any():
            break
        value = value.where(going, 0.0)
        again = (indices[..., :t] == pick[..., None]).any(-1) if repeat else None
        values[..., t] = value
        indices[..., t] = pick.where(going, 0)
        lengths += going
        residual = residual - value[..., None] * atom
        if again is not None:  # the pick that repeats is kept, then the row ends
            going = going & ~again
    return values, indices, lengths, residual


def pursue_backward(
    grad_values: Tensor,
    grad_residual: Tensor,
    values: Tensor,
    indices: Tensor,
    lengths: Tensor,
    residual: Tensor,
    atoms: Tensor,
    wants_atoms: bool,
) -> tuple[Tensor, Tensor]:
    """∂L/∂x [R, N, d_in] and ∂L/∂atoms [R, d_sae, d_in], by walking the picks back: r = r' + z d.

    With λ' = ∂L/∂r', γ = ∂L/∂z and s = γ − d·λ' a step gives ∂L/∂r = λ' + s d and ∂L/∂d = s r − z λ'.
    Memory does not grow with the number of steps.
    """
    d_in = atoms.shape[-1]
    table, start = as_table(atoms)
    own_start = torch.arange(atoms.shape[0], device=atoms.device)[:, None] * atoms.shape[1]
    grad, residual = grad_residual.clone(), residual.clone()  # λ and r, [R, N, d_in]
    grad_atoms = grad.new_zeros(atoms.shape if wants_atoms else 0)
    steps = values.shape[-1]
    if lengths.device.type == "cpu" and lengths.numel():
        steps = int(lengths.max())  # later slots are unused in every row
    for t in reversed(range(steps)):
        z, index = values[..., t, None], indices[..., t]
        atom = embedding(index + start, table)
        taken = (t < lengths)[..., None]
        s = (grad_values[..., t, None] - (atom * grad).sum(-1, keepdim=True)).where(taken, 0.0)  # [R, N, 1]
        residual.addcmul_(z, atom)
        if wants_atoms:
            share = s * residual - z * grad  # [R, N, d_in]
            grad_atoms.view(-1, d_in).index_add_(0, (index + own_start).flatten(), share.reshape(-1, d_in))
        grad.addcmul_(s, atom)
    return grad, grad_atoms


def row_norms(x: Tensor) -> Tensor:
    """‖x‖ over the last dimension, summed in float64 so that no finite row over- or underflows."""
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).to(x.dtype)

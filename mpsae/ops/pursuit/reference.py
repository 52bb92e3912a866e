"""Matching pursuit in plain torch: the definition that every kernel answers to, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from mpsae.ops.runs import add_to_rows_, as_table


def pursue(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, repeat: bool, select: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """values, indices [R, B, steps], lengths [R, B], residual [R, B, d_in] of x [R, B, d_in], atoms [R, d_sae, d_in].

    floors [R, B, 3]: what ‖r‖, the best correlation (not equal to it) and its cosine with r must reach for a pick.
    """
    table, start = as_table(atoms)
    values = x.new_zeros(*x.shape[:2], steps)
    indices = torch.zeros_like(values, dtype=torch.int32)
    lengths = torch.zeros_like(indices[..., 0])
    norm_floor, value_floor, cosine_floor = floors.unbind(-1)  # [R, B] each
    going = value_floor.isfinite()  # an input with NaN or Inf has no floors: no picks and a NaN residual
    residual = x.where(going[..., None], torch.nan)
    for t in range(steps):
        correlations = residual @ atoms.mT  # [R, B, d_sae]
        pick = (correlations.abs() if select == "absolute" else correlations).argmax(-1)  # ties: the lowest index
        del correlations  # before the next are made
        atom = embedding(pick + start, table)  # [R, B, d_in]
        value = (residual * atom).sum(-1)
        norm = row_norms(residual)
        size = value if select == "positive" else value.abs()
        going = going & (norm >= norm_floor) & (size > value_floor) & (size >= cosine_floor * norm)
        value = value.where(going, 0.0)
        again = (indices[..., :t] == pick[..., None]).any(-1) if repeat else None
        values[..., t] = value
        indices[..., t] = pick.where(going, 0)
        lengths += going
        residual = residual - value[..., None] * atom  # 0 · NaN: an atom with NaN makes the residual NaN
        if residual.device.type == "cpu" and not going.any():
            break
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
    """∂L/∂x [R, B, d_in] and ∂L/∂atoms [R, d_sae, d_in], by walking the picks back: r = r' + z d.

    With λ' = ∂L/∂r', γ = ∂L/∂z and s = γ − d·λ' a step gives ∂L/∂r = λ' + s d and ∂L/∂d = s r − z λ'.
    Memory does not grow with the number of steps.
    """
    table, start = as_table(atoms)
    grad = grad_residual.clone()  # λ, [R, B, d_in]
    residual = residual.where((lengths > 0)[..., None], 0.0)  # r; NaN where the input held NaN, which has no picks
    grad_atoms = grad.new_zeros(atoms.shape if wants_atoms else 0)
    steps = values.shape[-1]
    if lengths.device.type == "cpu" and lengths.numel():
        steps = int(lengths.max())  # later slots are unused in every row
    for t in reversed(range(steps)):
        z, index = values[..., t, None], indices[..., t]
        atom = embedding(index + start, table)
        taken = (t < lengths)[..., None]
        s = (grad_values[..., t, None] - (atom * grad).sum(-1, keepdim=True)).where(taken, 0.0)  # [R, B, 1]
        residual.addcmul_(z, atom)
        if wants_atoms:
            add_to_rows_(grad_atoms, index, s * residual - z * grad)
        grad.addcmul_(s, atom)
    return grad, grad_atoms


def row_norms(x: Tensor) -> Tensor:
    """‖x‖ over the last dimension, in float64: no finite float32 row over- or underflows."""
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)

"""Orthogonal matching pursuit: after each pick the coefficients of all picks are fitted anew, by least squares.

With the atoms of the picks as rows of S, the coefficients are z = (S Sᵀ)⁻¹ S x. S Sᵀ = L Lᵀ is grown by a row a step,
so memory is O(inputs · (k² + d_in)); atoms are gathered one slot at a time, never [inputs, k, d_in].
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn.functional import embedding

from mpsae.checks import one_of
from mpsae.codes import Codes
from mpsae.ops.forward_mode import refuse_forward_mode
from mpsae.ops.precision import Precision, multiplying
from mpsae.ops.pursuit import Pursuit, Select
from mpsae.ops.pursuit.reference import row_norms
from mpsae.ops.runs import add_to_rows_, as_table, fold_into_runs


def pursue_orthogonal_to_floors(
    x: Tensor,
    atoms: Tensor,
    floors: Tensor,
    *,
    steps: int,
    repeat: bool,
    select: Select,
    precision: Precision = "exact",
) -> Pursuit:
    """As `pursue_to_floors`, orthogonal; x [..., d_in], atoms [d_sae, d_in], floors [..., 3]."""
    one_of("select", select, get_args(Select))
    one_of("precision", precision, get_args(Precision))
    assert not repeat, "an orthogonal pursuit never picks an atom twice"
    refuse_forward_mode("orthogonal pursuit", x, atoms)
    leading, (d_sae, d_in) = x.shape[:-1], atoms.shape
    values, indices, lengths, residual, _ = pursue_orthogonal(
        x.reshape(1, -1, d_in), atoms[None], floors.reshape(1, -1, 3), steps, select, precision
    )
    slots = (*leading, steps)
    codes = Codes(values.reshape(slots), indices.reshape(slots), lengths.reshape(leading), d_sae, "orthogonal")
    return Pursuit(codes, residual.reshape(*leading, d_in))


@torch.library.custom_op("mpsae::pursue_orthogonal", mutates_args=())
def pursue_orthogonal(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, select: str, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """values, indices [R, B, steps], lengths [R, B], residual [R, B, d_in] and L [R, B, steps, steps].

    x [R, B, d_in], atoms [R, d_sae, d_in], floors [R, B, 3] as in `reference.pursue`. An atom in the span of the picks
    before it ends the row.
    """
    with multiplying(x.device, precision):
        return _pursue_orthogonal(x, atoms, floors, steps, select)


def _pursue_orthogonal(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, select: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    table, start = as_table(atoms)
    fitted = x.new_zeros(*x.shape[:2], steps)  # y = L⁻¹ S x, a number a pick
    indices = torch.zeros_like(fitted, dtype=torch.int32)
    lengths = torch.zeros_like(indices[..., 0])
    lower = torch.eye(steps, dtype=x.dtype, device=x.device).repeat(*x.shape[:2], 1, 1)  # L; identity where unused
    norm_floor, value_floor, cosine_floor = floors.unbind(-1)
    going = value_floor.isfinite()
    residual = x.where(going[..., None], torch.nan)
    for t in range(steps):
        correlations = residual @ atoms.mT  # [R, B, d_sae]
        pick = (correlations.abs() if select == "absolute" else correlations).argmax(-1)
        del correlations
        atom = embedding(pick + start, table)
        value = (residual * atom).sum(-1)
        norm = row_norms(residual)
        size = value if select == "positive" else value.abs()
        # S d, L⁻¹ S d, and what of the atom is new: its distance from the span of the picks.
        overlaps = _products_with_picks(atom, indices[..., :t], table, start)
        row = _solve(lower[..., :t, :t], overlaps)
        squared = atom.square().sum(-1)
        new = squared - row.square().sum(-1)
        going = going & (norm >= norm_floor) & (size > value_floor) & (size >= cosine_floor * norm)
        going = going & (new > 64 * torch.finfo(x.dtype).eps * squared)
        new = new.where(going, 1.0).sqrt()
        lower[..., t, :t] = row.where(going[..., None], 0.0)
        lower[..., t, t] = new
        indices[..., t] = pick.where(going, 0)
        lengths += going
        fitted[..., t] = (value / new).where(going, 0.0)
        # The new direction q = (d − Sᵀ (S Sᵀ)⁻¹ S d) / new takes its part of the residual away.
        span = _solve(lower[..., :t, :t].mT, row, upper=True)
        direction = (atom - _sum_of_picks(span, indices[..., :t], table, start)) / new[..., None]
        residual = residual - fitted[..., t, None] * direction
        if x.device.type == "cpu" and not going.any():
            break
    values = _solve(lower.mT, fitted, upper=True)
    return values, indices, lengths, residual, lower


def _products_with_picks(x: Tensor, indices: Tensor, table: Tensor, start: Tensor) -> Tensor:
    """S x [..., t] for the picks `indices` [..., t]."""
    slots = [(x * embedding(index + start, table)).sum(-1) for index in indices.unbind(-1)]
    return torch.stack(slots, -1) if slots else x.new_zeros(*x.shape[:-1], 0)


def _sum_of_picks(values: Tensor, indices: Tensor, table: Tensor, start: Tensor) -> Tensor:
    """Sᵀ values [..., d_in]."""
    out = values.new_zeros(*values.shape[:-1], table.shape[-1])
    for value, index in zip(values.unbind(-1), indices.unbind(-1), strict=True):
        out.addcmul_(value[..., None], embedding(index + start, table))
    return out


def _solve(triangular: Tensor, right: Tensor, *, upper: bool = False) -> Tensor:
    return torch.linalg.solve_triangular(triangular, right[..., None], upper=upper)[..., 0]


@pursue_orthogonal.register_fake
def _(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, select: str, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    runs, inputs, _ = x.shape
    values = x.new_empty(runs, inputs, steps)
    indices = values.new_empty(runs, inputs, steps, dtype=torch.int32)
    lower = x.new_empty(runs, inputs, steps, steps)
    return values, indices, indices.new_empty(runs, inputs), x.new_empty(x.shape), lower


@torch.library.custom_op("mpsae::pursue_orthogonal_backward", mutates_args=())
def _backward_op(
    grad_values: Tensor,
    grad_residual: Tensor,
    values: Tensor,
    indices: Tensor,
    lengths: Tensor,
    residual: Tensor,
    lower: Tensor,
    atoms: Tensor,
    wants_atoms: bool,
) -> tuple[Tensor, Tensor]:
    """∂L/∂x and ∂L/∂atoms with the picks held fixed.

    With γ = ∂L/∂z, λ = ∂L/∂r and w = (S Sᵀ)⁻¹ (γ − S λ): ∂L/∂x = g = λ + Sᵀ w and ∂L/∂d_s = w_s r − z_s g.
    """
    steps = values.shape[-1]
    table, start = as_table(atoms)
    used = torch.arange(steps, device=values.device) < lengths[..., None]
    residual = residual.where((lengths > 0)[..., None], 0.0)
    with multiplying(atoms.device, "exact"):
        right = grad_values - _products_with_picks(grad_residual, indices, table, start)
        weights = _solve(lower.mT, _solve(lower, right.where(used, 0.0)), upper=True).where(used, 0.0)
        grad = grad_residual + _sum_of_picks(weights, indices, table, start)
        grad_atoms = grad.new_zeros(atoms.shape if wants_atoms else 0)
        for s in range(steps if wants_atoms else 0):
            add_to_rows_(grad_atoms, indices[..., s], weights[..., s, None] * residual - values[..., s, None] * grad)
    return grad, grad_atoms


@_backward_op.register_fake
def _(
    grad_values: Tensor,
    grad_residual: Tensor,
    values: Tensor,
    indices: Tensor,
    lengths: Tensor,
    residual: Tensor,
    lower: Tensor,
    atoms: Tensor,
    wants_atoms: bool,
) -> tuple[Tensor, Tensor]:
    return residual.new_empty(residual.shape), residual.new_empty(atoms.shape if wants_atoms else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, indices, lengths, residual, lower = output
    ctx.mark_non_differentiable(indices, lengths, lower)
    ctx.save_for_backward(values, indices, lengths, residual, lower, inputs[1])


def _backward(ctx: Any, grad_values: Tensor, _i: Any, _n: Any, grad_residual: Tensor, _l: Any) -> tuple[Any, ...]:
    wants_atoms = ctx.needs_input_grad[1]
    grad_x, grad_atoms = _backward_op(grad_values, grad_residual, *ctx.saved_tensors, wants_atoms)
    return grad_x, grad_atoms if wants_atoms else None, None, None, None, None


pursue_orthogonal.register_autograd(_backward, setup_context=_setup)
pursue_orthogonal.register_vmap(fold_into_runs(pursue_orthogonal))

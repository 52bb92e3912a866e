"""x̂ from picks: gathered rows of the dictionary, weighted and added up; nothing of size d_sae an input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from mpsae.ops.forward_mode import refuse_forward_mode
from mpsae.ops.runs import add_to_rows_, as_table, fold_into_runs


def sum_gathered(values: Tensor, indices: Tensor, atoms: Tensor) -> Tensor:
    """`values[..., s] · atoms[indices[..., s]]` added over the slots s: [..., d_in]; differentiable in both.

    >>> sum_gathered(codes.values, codes.indices, sae.atoms)

    values, indices [..., k]; atoms [d_sae, d_in]. The gradient's memory does not grow with k.
    """
    refuse_forward_mode("decoding codes", values, atoms)
    leading, k = values.shape[:-1], values.shape[-1]
    dtype = torch.promote_types(values.dtype, atoms.dtype)
    slots = (1, leading.numel(), k)
    rows = _sum_gathered(values.to(dtype).reshape(slots), indices.reshape(slots), atoms.to(dtype)[None])
    return rows.reshape(*leading, atoms.shape[-1])


@torch.library.custom_op("mpsae::sum_gathered", mutates_args=())
def _sum_gathered(values: Tensor, indices: Tensor, atoms: Tensor) -> Tensor:
    runs, inputs, k = values.shape
    if not values.numel():
        return values.new_zeros(runs, inputs, atoms.shape[-1])
    table, start = as_table(atoms)
    rows = (indices + start[..., None]).reshape(-1, k)
    out = embedding_bag(rows, table, mode="sum", per_sample_weights=values.reshape(-1, k))
    return out.reshape(runs, inputs, -1)


@_sum_gathered.register_fake
def _(values: Tensor, indices: Tensor, atoms: Tensor) -> Tensor:
    return values.new_empty(*values.shape[:2], atoms.shape[-1])


@torch.library.custom_op("mpsae::sum_gathered_backward", mutates_args=())
def _sum_gathered_backward(
    grad: Tensor, values: Tensor, indices: Tensor, atoms: Tensor, wants_atoms: bool
) -> tuple[Tensor, Tensor]:
    table, start = as_table(atoms)
    grad_values = torch.empty_like(values)
    grad_atoms = grad.new_zeros(atoms.shape if wants_atoms else 0)
    for s in range(values.shape[-1]):
        atom = embedding(indices[..., s] + start, table)  # [R, B, d_in]
        grad_values[..., s] = (atom * grad).sum(-1)
        if wants_atoms:
            add_to_rows_(grad_atoms, indices[..., s], values[..., s, None] * grad)
    return grad_values, grad_atoms


@_sum_gathered_backward.register_fake
def _(grad: Tensor, values: Tensor, indices: Tensor, atoms: Tensor, wants_atoms: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(values), grad.new_empty(atoms.shape if wants_atoms else 0)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:
    wants_atoms = ctx.needs_input_grad[2]
    grad_values, grad_atoms = _sum_gathered_backward(grad, *ctx.saved_tensors, wants_atoms)
    return grad_values, None, grad_atoms if wants_atoms else None


_sum_gathered.register_autograd(_backward, setup_context=_setup)
_sum_gathered.register_vmap(fold_into_runs(_sum_gathered))

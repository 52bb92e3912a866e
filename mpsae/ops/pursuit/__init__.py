"""Matching pursuit as one differentiable operator.

`reference.py` is the definition; this file is what is called: checks, floors, and the operator with its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mpsae.checks import one_of, tensor
from mpsae.codes import Codes
from mpsae.ops.forward_mode import refuse_forward_mode
from mpsae.ops.precision import Precision, multiplying
from mpsae.ops.pursuit import reference
from mpsae.ops.pursuit.stop import Stop, make_floors
from mpsae.ops.runs import fold_into_runs

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Select = Literal["positive", "signed", "absolute"]
Backend = Literal["auto", "reference"]


@dataclass(frozen=True, eq=False)
class Pursuit:
    """What a pursuit found and what it left; differentiable in both."""

    codes: Codes
    residual: Tensor  # [..., d_in]: x − Σ values · atoms, so x̂ = x − residual costs nothing


pytree.register_pytree_node(
    Pursuit,
    lambda found: ([found.codes, found.residual], None),
    lambda leaves, _: Pursuit(*leaves),
    serialized_type_name="mpsae.Pursuit",
)


def pursue(
    x: Tensor,
    atoms: Tensor,
    stop: Stop | int,
    *,
    select: Select = "positive",
    backend: Backend = "auto",
    precision: Precision = "exact",
) -> Pursuit:
    """Write each input as a sum of atoms, one greedy pick at a time.

    >>> found = pursue(x, atoms, 8)                              # x [..., d_in], atoms [d_sae, d_in]
    >>> found.codes.indices, found.codes.values                  # [..., 8]: which atoms, how much of each
    >>> found.residual                                           # [..., d_in]: x − Σ values · atoms
    >>> pursue(x, atoms, Stop(64, relative=0.1), select="absolute")

    A step picks the atom d of the largest correlation d·r with what is left and subtracts (d·r) d. `select` says which
    correlations compete: `"positive"` the largest, the input ends when none is positive; `"signed"` the largest, which
    may be negative; `"absolute"` the largest magnitude. Atoms may have any finite norms; half-precision inputs are
    computed in float32. An input with NaN or Inf gets no picks and a NaN residual. Gradients reach x and atoms through
    values and residual; their memory does not grow with the number of steps. See docs/math.md.
    """
    stop = Stop.of(stop)
    dtype = _checked(x, atoms)
    x = x.to(dtype)
    return pursue_to_floors(
        x,
        atoms.to(dtype),
        make_floors(x, stop.limits),
        steps=stop.steps,
        repeat=stop.repeat,
        select=select,
        backend=backend,
        precision=precision,
    )


def pursue_to_floors(
    x: Tensor,
    atoms: Tensor,
    floors: Tensor,
    *,
    steps: int,
    repeat: bool,
    select: Select,
    backend: Backend = "auto",
    precision: Precision = "exact",
) -> Pursuit:
    """`pursue` for a caller who keeps the rules in tensors: floors [..., 3] as `stop.make_floors` makes them."""
    one_of("select", select, get_args(Select))
    one_of("backend", backend, get_args(Backend))
    one_of("precision", precision, get_args(Precision))
    refuse_forward_mode("pursue", x, atoms)
    leading, (d_sae, d_in) = x.shape[:-1], atoms.shape
    values, indices, lengths, residual = _pursue(
        x.reshape(1, -1, d_in), atoms[None], floors.reshape(1, -1, 3), steps, repeat, select, precision
    )
    codes = Codes(
        values.reshape(*leading, steps), indices.reshape(*leading, steps), lengths.reshape(leading), d_sae, "pursuit"
    )
    return Pursuit(codes, residual.reshape(*leading, d_in))


def _checked(x: Tensor, atoms: Tensor) -> torch.dtype:
    """The type to compute in, once rule, values and remedy of what is wrong have been said."""
    tensor("x", x)
    tensor("atoms", atoms)
    if atoms.ndim != 2 or not atoms.shape[0] or not atoms.shape[1]:
        raise ValueError(f"atoms are a matrix [d_sae, d_in] of at least one row; got shape {list(atoms.shape)}")
    if not x.ndim or x.shape[-1] != atoms.shape[1]:
        raise ValueError(
            f"x is [..., d_in] with the width of the atoms: x has shape {list(x.shape)}, "
            f"atoms {list(atoms.shape)}: the last dimension of x must be {atoms.shape[1]}"
        )
    for name, given in (("x", x), ("atoms", atoms)):
        if given.dtype not in FLOATING:
            known = ", ".join(str(dtype) for dtype in FLOATING)
            raise ValueError(f"{name} must be of one of {known}; got {given.dtype}: use {name}.float()")
    if x.device != atoms.device:
        raise ValueError(f"x and atoms must be on one device; x is on {x.device}, atoms on {atoms.device}: move one")
    return widest(x, atoms)


def widest(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: the widest of the tensors', at least float32."""
    return reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)


# The operator. R runs of N inputs each; R is 1 unless `torch.vmap` maps over runs.


@torch.library.custom_op("mpsae::pursue", mutates_args=())
def _pursue(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, repeat: bool, select: str, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with multiplying(x.device, precision):
        return reference.pursue(x, atoms, floors, steps, repeat, select)


@_pursue.register_fake
def _(
    x: Tensor, atoms: Tensor, floors: Tensor, steps: int, repeat: bool, select: str, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    runs, inputs, _ = x.shape
    values = x.new_empty(runs, inputs, steps)
    indices = values.new_empty(runs, inputs, steps, dtype=torch.int32)
    return values, indices, indices.new_empty(runs, inputs), x.new_empty(x.shape)


@torch.library.custom_op("mpsae::pursue_backward", mutates_args=())
def _pursue_backward(
    grad_values: Tensor,
    grad_residual: Tensor,
    values: Tensor,
    indices: Tensor,
    lengths: Tensor,
    residual: Tensor,
    atoms: Tensor,
    wants_atoms: bool,
) -> tuple[Tensor, Tensor]:
    with multiplying(atoms.device, "exact"):
        return reference.pursue_backward(
            grad_values, grad_residual, values, indices, lengths, residual, atoms, wants_atoms
        )


@_pursue_backward.register_fake
def _(
    grad_values: Tensor,
    grad_residual: Tensor,
    values: Tensor,
    indices: Tensor,
    lengths: Tensor,
    residual: Tensor,
    atoms: Tensor,
    wants_atoms: bool,
) -> tuple[Tensor, Tensor]:
    return residual.new_empty(residual.shape), residual.new_empty(atoms.shape if wants_atoms else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, indices, lengths, residual = output
    ctx.mark_non_differentiable(indices, lengths)
    ctx.save_for_backward(values, indices, lengths, residual, inputs[1])


def _backward(ctx: Any, grad_values: Tensor, _indices: Any, _lengths: Any, grad_residual: Tensor) -> tuple[Any, ...]:
    wants_atoms = ctx.needs_input_grad[1]
    grad_x, grad_atoms = _pursue_backward(grad_values, grad_residual, *ctx.saved_tensors, wants_atoms)
    return grad_x, grad_atoms if wants_atoms else None, None, None, None, None, None


_pursue.register_autograd(_backward, setup_context=_setup)
_pursue.register_vmap(fold_into_runs(_pursue))

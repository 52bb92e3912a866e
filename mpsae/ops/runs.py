"""The axis of runs that every operator has in front, and how `torch.vmap` fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def fold_into_runs(op: Callable[..., Any]) -> Callable[..., Any]:
    """A vmap rule: the mapped axis joins the axis of runs, the op is called once, its outputs are unfolded.

    Inputs that are shared by all mapped calls are expanded, never copied.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        size: int = info.batch_size

        def fold(arg: Any, dim: int | None) -> Any:
            if not isinstance(arg, Tensor):
                return arg
            mapped = arg.expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)
            return mapped.flatten(0, 1)  # [size · R, ...]

        outputs = op(*(fold(arg, dim) for arg, dim in zip(args, in_dims, strict=True)))

        def unfold(out: Tensor) -> Tensor:
            return out.unflatten(0, (size, -1)) if out.shape[0] else out.reshape(size, 0, *out.shape[1:])

        if isinstance(outputs, Tensor):
            return unfold(outputs), 0
        return tuple(unfold(out) for out in outputs), tuple(0 for _ in outputs)

    return rule


def add_to_rows_(atoms: Tensor, index: Tensor, rows: Tensor) -> None:
    """`atoms[r, index[r, b]] += rows[r, b]`: atoms [R, d_sae, d_in], index [R, B], rows [R, B, d_in]."""
    runs, d_sae, d_in = atoms.shape
    start = torch.arange(runs, device=atoms.device)[:, None] * d_sae
    atoms.view(-1, d_in).index_add_(0, (index + start).flatten(), rows.reshape(-1, d_in))


def as_table(atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms of all runs [R, d_sae, d_in] as one table of rows, and the row [R, 1] at which each run begins.

    Atoms shared by all runs (expanded) stay one copy.
    """
    runs, d_sae, d_in = atoms.shape
    start = torch.arange(runs, device=atoms.device)[:, None]
    if runs > 1 and atoms.stride(0) == 0:
        return atoms[0], start * 0
    return atoms.reshape(runs * d_sae, d_in), start * d_sae

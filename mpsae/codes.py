"""What inputs were written as: a few picks each, in one padded layout, whatever the SAE."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mpsae.checks import one_of, whole

Order = Literal["pursuit", "orthogonal", "magnitude"]


@dataclass(frozen=True, eq=False)
class Codes:
    """Sparse codes of inputs of any leading shape, `k` slots each.

    >>> codes = sae.encode(x)                 # x [..., d_in]
    >>> codes.values, codes.indices           # [..., k] each, in the order of the picks
    >>> codes.dense() @ sae.atoms + sae.bias  # what sae.decode(codes) computes without the dense matrix
    >>> codes.prefix(8)                       # the first 8 picks of a longer pursuit

    The first `lengths` slots of an input are used; the rest hold value 0 and an index in range, and carry no gradient.
    `order` says what a slot's position means. In `"pursuit"` and `"orthogonal"` codes it is the step, and an atom may
    be picked again (its values add up); in `"magnitude"` codes each atom stands once, the largest magnitude first.
    """

    values: Tensor  # [..., k] float32 or wider
    indices: Tensor  # [..., k] int32
    lengths: Tensor  # [...] int32
    d_sae: int
    order: Order

    def __post_init__(self) -> None:
        one_of("order", self.order, get_args(Order))
        if self.values.shape != self.indices.shape or self.values.shape[:-1] != self.lengths.shape:
            raise ValueError(
                "values and indices are [..., k] and lengths [...]; got values "
                f"{list(self.values.shape)}, indices {list(self.indices.shape)}, lengths {list(self.lengths.shape)}"
            )
        if self.values.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"values are float32 or float64; got {self.values.dtype}: use values.float()")
        for name in ("indices", "lengths"):
            if getattr(self, name).dtype != torch.int32:
                raise ValueError(f"{name} are int32; got {getattr(self, name).dtype}: use {name}.int()")

    @classmethod
    def from_dense(cls, dense: Tensor, k: int | None = None) -> Codes:
        """The `k` largest magnitudes of `dense` [..., d_sae]; without k, all that are not zero.

        Without k the width is read from the data, which waits for the device.
        """
        d_sae = dense.shape[-1]
        dense = dense.to(torch.promote_types(dense.dtype, torch.float32))
        active = (dense != 0).sum(-1)  # [...]
        if k is None:
            k = int(active.max()) if active.numel() else 0
        k = min(whole("k", k, 0), d_sae)
        indices = dense.detach().abs().topk(k, dim=-1).indices  # [..., k]
        lengths = active.clamp(max=k)
        used = _slots(k, lengths)
        values = dense.gather(-1, indices).where(used, 0.0)
        return cls(values, indices.where(used, 0).int(), lengths.int(), d_sae, "magnitude")

    @classmethod
    def cat(cls, parts: list[Codes] | tuple[Codes, ...], dim: int = 0) -> Codes:
        """Codes of several batches as one, along a leading dimension; the widest sets the width."""
        if not parts:
            raise ValueError("cat needs at least one Codes; got none")
        orders, widths = {c.order for c in parts}, {c.d_sae for c in parts}
        if len(orders) > 1 or len(widths) > 1:
            raise ValueError(
                f"cat joins codes of one order and one d_sae; got orders {sorted(orders)} and d_sae {sorted(widths)}: "
                "bring them to one order with .merged() first"
            )
        leading = parts[0].lengths.ndim
        if not -leading <= dim < leading:
            raise ValueError(f"cat joins leading dimensions; these codes have {leading}, got dim {dim}")
        k = max(c.values.shape[-1] for c in parts)
        dim %= leading

        def padded(slots: Tensor) -> Tensor:
            return torch.nn.functional.pad(slots, (0, k - slots.shape[-1]))

        return cls(
            torch.cat([padded(c.values) for c in parts], dim),
            torch.cat([padded(c.indices) for c in parts], dim),
            torch.cat([c.lengths for c in parts], dim),
            parts[0].d_sae,
            parts[0].order,
        )

    @property
    def used(self) -> Tensor:
        """Which slots hold a pick [..., k]."""
        return _slots(self.values.shape[-1], self.lengths)

    def dense(self) -> Tensor:
        """One number an atom [..., d_sae]; differentiable in the values."""
        zeros = self.values.new_zeros(*self.values.shape[:-1], self.d_sae)
        return zeros.scatter_add(-1, self.indices.long(), self.values)

    def sparse(self) -> Tensor:
        """A torch CSR matrix [inputs, d_sae], the leading dimensions flattened to rows; waits for the device."""
        merged = self.merged()
        rows = (merged.lengths.numel(), merged.values.shape[-1])  # a single input is one row
        atoms, by_atom = merged.indices.where(merged.used, self.d_sae).reshape(rows).sort(-1)
        values = merged.values.reshape(rows).gather(-1, by_atom)
        used = atoms < self.d_sae
        starts = torch.nn.functional.pad(used.sum(-1).cumsum(0), (1, 0))
        size = (rows[0], self.d_sae)
        with warnings.catch_warnings():  # torch announces on first use that CSR is in beta
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(starts, atoms[used].long(), values[used], size, check_invariants=True)

    def l0(self) -> Tensor:
        """How many distinct atoms write each input [...]."""
        return self.merged().lengths

    def counts(self) -> Tensor:
        """In how many inputs each atom fires [d_sae]; picked twice in one input counts once."""
        merged = self.merged()
        fires = merged.used.long().flatten()
        return fires.new_zeros(self.d_sae).scatter_add(0, merged.indices.long().flatten(), fires)

    def prefix(self, steps: int) -> Codes:
        """The first `steps` picks: what the same pursuit gives when it ends there."""
        if self.order == "orthogonal":
            raise ValueError(
                "the values of an orthogonal pursuit depend on all its picks, so a prefix of them is no shorter "
                "pursuit: encode again with k=steps, or take the largest with .top(steps)"
            )
        steps = whole("steps", steps, 0)
        return replace(
            self,
            values=self.values[..., :steps],
            indices=self.indices[..., :steps],
            lengths=self.lengths.clamp(max=steps),
        )

    def top(self, count: int) -> Codes:
        """The `count` atoms of largest magnitude, after the picks of each atom are added up."""
        return self.merged().prefix(whole("count", count, 0))

    def merged(self) -> Codes:
        """Each atom once, its picks added up, the largest magnitude first; atoms that add up to 0 go."""
        if self.order == "magnitude":
            return self
        atoms, by_atom = self.indices.sort(dim=-1, stable=True)  # an atom's picks side by side; unused slots add 0
        values = self.values.gather(-1, by_atom)
        group = (atoms.diff(dim=-1, prepend=atoms[..., :1]) != 0).long().cumsum(-1)  # [..., k] 0 0 1 2 2 …
        totals = torch.zeros_like(values).scatter_add(-1, group, values)
        names = torch.zeros_like(atoms).scatter(-1, group, atoms)
        real = totals != 0
        by_size = totals.abs().where(real, -1.0).sort(dim=-1, descending=True, stable=True).indices
        real = real.gather(-1, by_size)
        return Codes(
            totals.gather(-1, by_size).where(real, 0.0),
            names.gather(-1, by_size).where(real, 0),
            real.sum(-1).int(),
            self.d_sae,
            "magnitude",
        )

    def to(self, *args: Any, **kwargs: Any) -> Codes:
        """The same codes on another device, or with values of another type, float32 or float64."""
        values = self.values.to(*args, **kwargs)
        return replace(
            self, values=values, indices=self.indices.to(values.device), lengths=self.lengths.to(values.device)
        )

    def detach(self) -> Codes:
        """The same codes outside the graph."""
        return replace(self, values=self.values.detach())

    def __getitem__(self, index: Any) -> Codes:
        """Codes of some inputs: `index` addresses the leading dimensions."""
        lengths = self.lengths[index]  # refuses an index that would reach into the slots
        parts = index if isinstance(index, tuple) else (index,)
        if any(part is Ellipsis for part in parts):
            index = (*parts, slice(None))
        return replace(self, values=self.values[index], indices=self.indices[index], lengths=lengths)

    def __len__(self) -> int:
        if not self.lengths.ndim:
            raise TypeError("codes of a single input have no length; codes.lengths is its number of picks")
        return self.lengths.shape[0]

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.values.shape))
        return f"Codes([{shape}] of {self.d_sae} atoms, {self.order} order, {self.values.dtype}, {self.values.device})"


def _slots(k: int, lengths: Tensor) -> Tensor:
    return torch.arange(k, device=lengths.device) < lengths[..., None]


def _unflatten(leaves: Any, context: Any) -> Codes:
    # torch's transforms rebuild with placeholders in place of tensors, which the checks of __init__ would refuse.
    codes = object.__new__(Codes)
    for name, value in zip(("values", "indices", "lengths", "d_sae", "order"), (*leaves, *context), strict=True):
        object.__setattr__(codes, name, value)
    return codes


pytree.register_pytree_node(
    Codes,
    lambda codes: ([codes.values, codes.indices, codes.lengths], (codes.d_sae, codes.order)),
    _unflatten,
    serialized_type_name="mpsae.Codes",
)

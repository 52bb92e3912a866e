"""Many SAEs of one kind as one program: their tensors stacked, the single SAE's own code under `torch.vmap`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mpsae.codes import Codes
from mpsae.ops.pursuit import Stop
from mpsae.sae.contract import SAE, Output, buffer_types_kept


class Runs(nn.Module):
    """R SAEs that differ in their tensors alone (seeds, bounds), trained and read together.

    >>> runs = Runs([MatchingPursuitSAE(20, 20, 4, seed=seed) for seed in range(10)])
    >>> out = runs(x)                        # x [B, d_in] is shared; x [R, B, d_in] is one batch a run
    >>> sum(runs.losses(x, out).values()).sum().backward()
    >>> opt.step(); runs.update_(x, out)
    >>> runs[3].save("runs/seed-3")          # one SAE, whose tensors are run 3's own
    """

    def __init__(self, saes: Iterable[SAE]) -> None:
        super().__init__()
        if isinstance(saes, SAE) or not (saes := list(saes)):
            raise ValueError(f"Runs needs a list of at least one SAE; got {saes!r}")
        shared = [_shared(sae) for sae in saes]
        for i, other in enumerate(shared):
            differ = [name for name in shared[0] | other if shared[0].get(name) != other.get(name)]
            if differ:
                raise ValueError(
                    f"the SAEs of Runs differ in their tensors and seeds alone; numbers 0 and {i} differ in "
                    + ", ".join(f"{name}: {shared[0].get(name)!r} and {other.get(name)!r}" for name in differ)
                    + ": put them in separate Runs"
                )
        self.seeds = [sae.seed for sae in saes]
        self.removed_means = [sae.removed_mean for sae in saes]
        for name, parameter in saes[0].named_parameters():
            stacked = torch.stack([sae.get_parameter(name).detach() for sae in saes])
            self._parameters[name] = nn.Parameter(stacked, parameter.requires_grad)
        self._buffers.update(_stacked(saes, [name for name, _ in saes[0].named_buffers()]))
        self._program = _program_of(saes[0])

    @property
    def program(self) -> SAE:
        """The SAE whose code and plain attributes all runs share; its tensors are empty."""
        return self._program[0]

    @property
    def atomwise(self) -> tuple[str, ...]:
        """Parameters with one row an atom, after the axis of runs."""
        return self.program.atomwise

    @property
    def updates(self) -> int:
        """How many updates the runs have made."""
        return self.program.updates

    def __len__(self) -> int:
        return len(next(self.parameters()))

    def __getitem__(self, index: int) -> SAE:
        """One run as a single SAE; its tensors are views into the stacked ones."""
        if not isinstance(index, int) or not -len(self) <= index < len(self):
            raise IndexError(f"a run is one of {len(self)}, by its number; got {index!r}")
        sae = copy.copy(self.program)
        sae._kept = type(sae._kept)()
        sae._parameters = {}
        for name, stacked in self.named_parameters():
            sae._parameters[name] = nn.Parameter(stacked.detach()[index], stacked.requires_grad)
        sae._buffers = {name: stacked[index] for name, stacked in self.named_buffers()}
        sae.seed, sae.removed_mean = self.seeds[index], self.removed_means[index]
        return sae

    def __iter__(self) -> Iterator[SAE]:
        return (self[i] for i in range(len(self)))

    def forward(self, x: Tensor) -> Output:
        """As every run's own `forward`; the axis of runs is the first of every result."""
        return self._each("forward", x)

    def encode(self, x: Tensor, *, k: int | None = None, stop: Stop | int | None = None) -> Codes:
        """As every run's own `encode`."""
        if k is not None or stop is not None:
            return self.at(k=k, stop=stop).encode(x)
        self[0]._check_form(x)
        self[0]._check_values(x)
        for sae in self:
            sae._check_tensors()
        acts = self._each("_read", x)
        return acts if isinstance(acts, Codes) else Codes.from_dense(acts)

    def decode(self, codes: Codes | Tensor) -> Tensor:
        """As every run's own `decode`; codes [R, ...] as `encode` gives them."""
        return self._each("decode", codes)

    def schedule_(self, name: str, value: float) -> None:
        """As every run's own `schedule_`."""
        for sae in self:  # what is in tensors, each run's views of the stacked ones
            sae.schedule_(name, value)
        self.program.schedule_(name, value)

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        """As every run's own `losses`: each term [R]."""
        return self._each("losses", x, output)

    def update_(self, x: Tensor, output: Output) -> Tensor | None:
        """As every run's own `update_`: the mask [R, d_sae] of atoms made anew, or None."""
        mask = self._each("update_", x, output)
        return None if isinstance(mask, tuple) else mask

    def at(self, *, k: int | None = None, stop: Stop | int | None = None) -> Self:
        """The same tensors, read at another sparsity."""
        singles = list(self)
        readings = [sae.at(k=k, stop=stop) for sae in singles]
        changed = [n for n, buffer in readings[0].named_buffers() if buffer is not singles[0]._buffers[n]]
        other = copy.copy(self)
        other._buffers = self._buffers | _stacked(readings, changed)
        other._program, other.training = _program_of(readings[0]), False
        return other

    def train(self, mode: bool = True) -> Self:
        """Training or, with False, eval mode, for the code that all runs share too."""
        self.program.train(mode)
        return super().train(mode)

    def _each(self, method: str, x: Any, *more: Any) -> Any:
        """`method` of every run, as one program."""
        per_run = not isinstance(x, Tensor) or x.ndim == 3
        if isinstance(x, Tensor) and (x.ndim not in (2, 3) or (per_run and len(x) != len(self))):
            raise ValueError(
                f"x is [B, d_in] for all {len(self)} runs, or [{len(self)}, B, d_in] with one batch a run; "
                f"got shape {list(x.shape)}"
            )
        program = _Method(self.program, method)
        state = {f"sae.{name}": tensor for name, tensor in (*self.named_parameters(), *self.named_buffers())}

        def one(state: dict[str, Tensor], *args: Any) -> Any:
            return functional_call(program, state, args)

        return torch.vmap(one, in_dims=(0, 0 if per_run else None, *(0 for _ in more)))(state, x, *more)

    def extra_repr(self) -> str:
        return f"{len(self)} × {self[0]}"

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        with buffer_types_kept(self):
            return super()._apply(fn, recurse)


class _Method(nn.Module):
    """A method of an SAE as a module's forward, which is what `functional_call` calls."""

    def __init__(self, sae: SAE, method: str) -> None:
        super().__init__()
        self.sae, self.method = sae, method

    def forward(self, *args: Any) -> Any:
        result = getattr(self.sae, self.method)(*args)
        return () if result is None else result  # vmap returns tensors alone


def _shared(sae: SAE) -> dict[str, Any]:
    """What SAEs of one `Runs` have in common: class, plain attributes, the form of their tensors."""
    own = ("seed", "removed_mean")
    plain = {name: value for name, value in vars(sae).items() if not name.startswith("_") and name not in own}
    tensors = (*sae.named_parameters(), *sae.named_buffers())
    forms = {name: (tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors}
    return {"class": type(sae).__name__} | plain | forms


def _stacked(saes: Sequence[SAE], names: Sequence[str]) -> dict[str, Tensor | None]:
    return {name: torch.stack([sae.get_buffer(name) for sae in saes]) for name in names}


def _program_of(sae: SAE) -> tuple[SAE]:
    """The SAE without tensors of its own; in a tuple, so that it is no submodule."""
    program = copy.deepcopy(sae)
    program._is_reading = False
    return (program.to("meta"),)

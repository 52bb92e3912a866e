"""Rows to train on and rows to judge by: who owns the split, and who hands out batches."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from mpsae.checks import one_of, whole
from mpsae.data.sources import Generator, open_matrix

Rows = Literal["held_out", "train", "all"]
Source = Tensor | str | Path | Generator | Sequence[Generator]
PREFETCHED = 2
"""Batches that are read ahead while one is used."""


class Batch(NamedTuple):
    """What a stream hands out."""

    x: Tensor
    """[B, d_in]; [R, B, d_in] from R generators."""
    rows: Tensor | None = None
    """Which rows of the source these are [B]; None where they are drawn."""
    labels: dict[str, Tensor] | None = None
    """What is known of each row."""


@runtime_checkable
class Stream(Protocol):
    """Batches without end, and where they are; the shape of torchdata's StatefulDataLoader."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out, whatever is read ahead."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class Data:
    """What is read, apart from how it is trained on: a source and its split into training and held-out rows.

    >>> data = Data("activations.npy")                 # or .safetensors, a tensor [N, d_in], a generator
    >>> for x, rows, labels in data.stream(1024): ...  # endless, shuffled, training rows
    >>> for x, rows, labels in data.once(4096): ...    # every held-out row once

    `held_out` is a share of the rows, chosen by a permutation that `split_seed` alone decides, so that runs of several
    seeds are judged on the same rows; or a source of its own. Files are mapped, never read whole. A generator draws
    without end; what it draws to be judged by comes from other seeds.
    """

    def __init__(
        self,
        source: Source,
        *,
        labels: Tensor | dict[str, Tensor] | None = None,
        held_out: float | Source = 0.05,
        split_seed: int = 0,
    ) -> None:
        self.split_seed = whole("split_seed", split_seed, 0)
        self.matrix, self.generators = _opened(source)
        self.labels = {"label": labels} if isinstance(labels, Tensor) else labels
        self.other: Data | None = None
        if not isinstance(held_out, int | float):
            self.other = Data(held_out, held_out=0.0)
            if self.other.d_in != self.d_in:
                raise ValueError(
                    f"held-out rows must be as wide as the others; they have {self.other.d_in} columns, not {self.d_in}"
                )
        elif isinstance(held_out, bool) or not 0 <= held_out < 1:
            raise ValueError(f"held_out must be a share in [0, 1), or a source; got {held_out!r}")
        for name, label in (self.labels or {}).items():
            if self.matrix is None or len(label) != len(self.matrix):
                rows = "none" if self.matrix is None else len(self.matrix)
                raise ValueError(f"labels[{name!r}] must have one entry a row; got {len(label)} for {rows} rows")
        self.held_out = self.train = torch.zeros(0, dtype=torch.int64)
        if self.matrix is not None:
            count = len(self.matrix)
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.split_seed))
            kept_out = 0 if self.other is not None else int(count * float(held_out))  # pyright: ignore[reportArgumentType]
            self.held_out, self.train = order[:kept_out].sort().values, order[kept_out:].sort().values

    @property
    def d_in(self) -> int:
        """The width of an input."""
        return self.generators[0].d_in if self.matrix is None else self.matrix.shape[1]

    def stream(self, batch_size: int, *, seed: int = 0) -> Stream:
        """Training rows without end: every row once an epoch, in an order that the seed decides."""
        whole("batch_size", batch_size, 1)
        whole("seed", seed, 0)
        if self.matrix is None:
            return _Stream(lambda i: self._drawn(batch_size, f"train {i}", seed), {"seed": seed, "size": batch_size})
        if not len(self.train):
            raise ValueError(f"there is no row to train on: the source has {len(self.matrix)}, all of them held out")
        shuffled = _Shuffled(self.train, batch_size, seed)
        state = {"seed": seed, "size": batch_size, "rows": len(self.train), "split_seed": self.split_seed}
        return _Stream(lambda i: self._read(shuffled.rows(i)), state)

    def once(self, batch_size: int, *, rows: Rows = "held_out", count: int | None = None) -> Iterator[Batch]:
        """Rows of one kind, each once, in stored order; at most `count`, which a generator needs."""
        whole("batch_size", batch_size, 1)
        one_of("rows", rows, get_args(Rows))
        if count is not None:
            whole("count", count, 1)
        return self._once(batch_size, rows, count)

    def _once(self, batch_size: int, rows: Rows, count: int | None) -> Iterator[Batch]:
        if rows == "held_out" and self.other is not None:
            yield from self.other._once(batch_size, "all", count)
            return
        if self.matrix is None:
            if count is None:
                raise ValueError("a generator draws without end: say how many with count=…")
            for i, start in enumerate(range(0, count, batch_size)):
                yield self._drawn(min(batch_size, count - start), f"{rows} once {i}", self.split_seed)
            return
        chosen = {"held_out": self.held_out, "train": self.train, "all": torch.arange(len(self.matrix))}[rows]
        if not len(chosen):
            raise ValueError(f'there are no rows of the kind {rows!r}: held_out was 0, or use rows="all"')
        for part in chosen[:count].split(batch_size):
            yield self._read(part)

    def fingerprint(self) -> str:
        """A SHA-256 of form and content (of at most 4,096 rows, evenly spaced); of a generator, of what it draws."""
        digest = hashlib.sha256()
        if self.matrix is None:
            sample = self._drawn(256, "fingerprint", 0).x
        else:
            digest.update(f"{self.matrix.dtype} {list(self.matrix.shape)}".encode())
            sample = self.matrix[torch.linspace(0, len(self.matrix) - 1, min(len(self.matrix), 4096)).long()]
        digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _read(self, rows: Tensor) -> Batch:
        assert self.matrix is not None
        labels = None if self.labels is None else {name: label[rows] for name, label in self.labels.items()}
        return Batch(self.matrix.index_select(0, rows), rows, labels)

    def _drawn(self, count: int, what: str, seed: int) -> Batch:
        """A batch of the generators; the draw follows from the seed, what it is for, and nothing else."""
        parts = []
        for r, source in enumerate(self.generators):
            name = hashlib.sha256(f"{seed + r} {what}".encode()).digest()
            drawn = source.sample(count, torch.Generator().manual_seed(int.from_bytes(name[:8], "little") >> 1))
            parts.append(drawn if isinstance(drawn, tuple) else (drawn,))
        x = torch.stack([part[0] for part in parts])
        labels = None if len(parts[0]) == 1 else {"z": torch.stack([part[1] for part in parts])}
        if len(parts) > 1:
            return Batch(x, None, labels)
        return Batch(x[0], None, None if labels is None else {"z": labels["z"][0]})


class _Shuffled:
    """The rows of every batch of an endless pass: each row once an epoch, batches may span two."""

    def __init__(self, rows: Tensor, batch_size: int, seed: int) -> None:
        self.all, self.batch_size, self.seed = rows, batch_size, seed
        self._epoch, self._order = -1, rows

    def rows(self, batch: int) -> Tensor:
        """Rows [batch_size] of the batch of that number."""
        start, parts = batch * self.batch_size, []
        while (missing := self.batch_size - sum(map(len, parts))) > 0:
            epoch, offset = divmod(start, len(self.all))
            part = self._ordered(epoch)[offset : offset + missing]
            parts.append(part)
            start += len(part)
        return torch.cat(parts)

    def _ordered(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            name = hashlib.sha256(f"{self.seed} epoch {epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(name[:8], "little") >> 1)
            self._epoch, self._order = epoch, self.all[torch.randperm(len(self.all), generator=generator)]
        return self._order


class _Stream:
    """Batches by their number, some read ahead by a thread; the state is how many were handed out."""

    def __init__(self, batch: Any, about: dict[str, Any]) -> None:
        self._batch, self._about, self._handed_out = batch, about, 0

    def __iter__(self) -> Iterator[Batch]:
        ahead: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="mpsae-stream") as reader:
            try:
                number = self._handed_out
                while True:
                    while len(ahead) <= PREFETCHED:
                        ahead.append(reader.submit(self._batch, number))
                        number += 1
                    batch = ahead.popleft().result()
                    self._handed_out += 1
                    yield batch
            finally:
                for future in ahead:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        return self._about | {"batches": self._handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        about = {name: value for name, value in state.items() if name != "batches"}
        if about != self._about:
            raise ValueError(
                f"this position is of another stream: {about}, not {self._about}; resume with the same data"
            )
        self._handed_out = whole("batches", state.get("batches"), 0)


def _opened(source: Source) -> tuple[Tensor | None, list[Generator]]:
    if isinstance(source, str | Path):
        source = open_matrix(Path(source))
    if isinstance(source, Tensor):
        if source.ndim != 2 or not source.is_floating_point():
            raise ValueError(
                f"a tensor of data must be a floating matrix [rows, d_in]; got {source.dtype} {list(source.shape)}"
            )
        return source, []
    generators = [source] if isinstance(source, Generator) else list(source) if isinstance(source, Sequence) else []
    if not generators or not all(isinstance(generator, Generator) for generator in generators):
        raise ValueError(
            "data come from a tensor [rows, d_in], a .npy or .safetensors file, or generators (with d_in and "
            f"sample(count, generator)); got {type(source).__name__}"
        )
    if len({generator.d_in for generator in generators}) > 1:
        raise ValueError(f"generators of one width make one batch; got {[g.d_in for g in generators]}")
    return None, generators

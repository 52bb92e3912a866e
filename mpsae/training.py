"""Updates and nothing else: SAEs trained on batches, in the open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mpsae.adam import GatedAdam
from mpsae.checks import number, one_of, whole
from mpsae.data.data import Batch
from mpsae.sae.contract import SAE, Output
from mpsae.sae.runs import Runs
from mpsae.schedules import LearningRate, Points

Optimizer = Literal["adam", "adamw"]


@dataclass(frozen=True)
class TrainConfig:
    """How SAEs are trained."""

    updates: int
    """Optimiser updates; the only length there is."""
    lr: LearningRate | float = 1e-3
    """Learning rate; a number is its peak, with a warm-up over a fiftieth of the updates and a cosine to 0."""
    optimizer: Optimizer = "adam"
    """adam takes weight decay into the gradient (L2), adamw shrinks the weights themselves."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    weight_decay: float = 0.0
    """Weight decay, in the optimiser's sense."""
    clip: float = 0.0
    """Largest norm of an SAE's whole gradient; 0 is off."""
    accumulate: int = 1
    """Batches whose gradients make one update."""
    schedules: Mapping[str, Points] = field(default_factory=dict)
    """Sparsities by update, of the SAEs that have them: k, l0, a pursuit's residual, relative, coefficient, cosine."""

    def __post_init__(self) -> None:
        whole("updates", self.updates, 1)
        if not isinstance(self.lr, LearningRate):
            number("lr", self.lr)
        one_of("optimizer", self.optimizer, get_args(Optimizer))
        for beta in self.betas:
            if number("a beta", beta) >= 1:
                raise ValueError(f"betas must be in [0, 1); got {self.betas}")
        number("weight_decay", self.weight_decay)
        number("clip", self.clip, "0 is off")
        whole("accumulate", self.accumulate, 1)
        for name, points in self.schedules.items():
            if not isinstance(points, Points):
                raise ValueError(f"a schedule is Points((update, value), …); {name!r} is {points!r}")

    @property
    def rate(self) -> LearningRate:
        """The learning rate by update."""
        if isinstance(self.lr, LearningRate):
            return self.lr
        return LearningRate(self.lr, warmup=max(self.updates // 50, 1))


@dataclass(frozen=True)
class Update:
    """What one update did; tensors of the device, which only who reads them waits for."""

    number: int
    """How many updates have been made with it."""
    rate: float
    """The learning rate."""
    x: Tensor
    """The inputs, of all accumulated batches."""
    outputs: dict[str, Output]
    """What each SAE made of them, detached."""
    losses: dict[str, dict[str, Tensor]]
    """Every term of the loss of each SAE; a number, or one a run."""
    gradient_norm: dict[str, Tensor]
    """The norm of each SAE's whole gradient, before clipping."""
    counted: dict[str, Tensor]
    """Whether the update was made: it is not where the loss or the gradient is not finite."""


class Training:
    """Iterate it for updates.

    >>> training = Training(sae, data.stream(1024), TrainConfig(updates=20_000))
    >>> for update in training:
    ...     if update.number % 100 == 0:
    ...         print(update.number, update.losses["sae"]["reconstruction"].item())

    `saes` is one SAE, a `Runs`, or a dict of them by name, all trained on the same batches. `batches` is any iterable
    of `Batch` or tensors; one without `state_dict` cannot be resumed. An update of an SAE whose loss or gradient is not
    finite is not made, for that SAE (or run) alone: parameters, moments and buffers stay as they were. No update waits
    for the device.
    """

    def __init__(
        self, saes: SAE | Runs | Mapping[str, SAE | Runs], batches: Iterable[Batch | Tensor], config: TrainConfig
    ) -> None:
        if not isinstance(config, TrainConfig):
            raise ValueError(f"config must be a TrainConfig; got {config!r}: use TrainConfig(updates=…)")
        self.saes = dict(saes) if isinstance(saes, Mapping) else {"sae": saes}
        if not self.saes or not all(isinstance(sae, SAE | Runs) for sae in self.saes.values()):
            raise ValueError(f"Training takes an SAE, a Runs, or a dict of them by name; got {saes!r}")
        self.batches, self.config, self.updates = batches, config, 0
        for name in config.schedules:
            if not any(name in _program(sae).scheduled for sae in self.saes.values()):
                known = {key: _program(sae).scheduled for key, sae in self.saes.items()}
                raise ValueError(f"{name!r} is scheduled, but no SAE has it; they have {known}")
        self.optimizers = {
            name: GatedAdam(
                {n: p for n, p in sae.named_parameters() if p.requires_grad},
                betas=config.betas,
                weight_decay=config.weight_decay,
                decay="l2" if config.optimizer == "adam" else "decoupled",
                runs=len(sae) if isinstance(sae, Runs) else None,
            )
            for name, sae in self.saes.items()
        }

    def __iter__(self) -> Iterator[Update]:
        for sae in self.saes.values():
            sae.train()
        batches = iter(self.batches)
        while self.updates < self.config.updates:
            parts = [_inputs(batch) for batch in islice(batches, self.config.accumulate)]
            if len(parts) < self.config.accumulate:
                raise ValueError(
                    f"the batches ended after {self.updates} of {self.config.updates} updates: give a stream without "
                    "end, such as data.stream(batch_size)"
                )
            yield self._update(parts)

    def _update(self, parts: list[Tensor]) -> Update:
        rate = self.config.rate.at(self.updates, self.config.updates)
        losses, norms, counted, outputs = {}, {}, {}, {}
        for name, sae in self.saes.items():
            for sparsity, points in self.config.schedules.items():
                if sparsity in _program(sae).scheduled:
                    sae.schedule_(sparsity, points.at(self.updates))
            moved = [part.to(next(sae.parameters()).device, non_blocking=True) for part in parts]
            losses[name], norms[name], counted[name], outputs[name] = self._step(name, sae, moved, rate)
        self.updates += 1
        return Update(self.updates, rate, _joined(parts), outputs, losses, norms, counted)

    def _step(
        self, name: str, sae: SAE | Runs, parts: list[Tensor], rate: float
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Output]:
        """One update of one SAE; returns terms, gradient norm, whether it counted, and the output."""
        optimizer = self.optimizers[name]
        for parameter in optimizer.parameters.values():
            parameter.grad = None
        made, all_terms = [], []
        for part in parts:
            output = sae(part)
            terms = sae.losses(part, output)
            (sum(terms.values(), torch.zeros((), device=part.device)) / len(parts)).sum().backward()
            made.append(pytree.tree_map(lambda t: t.detach(), output))
            all_terms.append({term: value.detach() for term, value in terms.items()})
        terms = {term: torch.stack([each[term] for each in all_terms]).mean(0) for term in all_terms[0]}
        norm = optimizer.gradient_norm()
        counts = norm.isfinite() & sum(terms.values(), torch.zeros_like(norm)).isfinite()
        scale = (self.config.clip / (norm + 1e-6)).clamp(max=1.0) if self.config.clip else torch.ones_like(norm)
        # The optimiser leaves alone what does not count; what `update_` writes is put back below.
        kept = {n: buffer.clone() for n, buffer in sae.named_buffers()}
        optimizer.step(rate, counts, scale)
        parameters = {n: sae.get_parameter(n).detach().clone() for n in _touched(sae)}
        output = made[0] if len(made) == 1 else _joined_outputs(made, isinstance(sae, Runs))
        mask = sae.update_(_joined(parts), output)
        with torch.no_grad():
            for n, before in kept.items():
                buffer = sae.get_buffer(n)
                buffer.copy_(buffer.where(_broad(counts, buffer), before))
            for n, before in parameters.items():
                parameter = sae.get_parameter(n)
                parameter.copy_(parameter.where(_broad(counts, parameter), before))
        if mask is not None:
            optimizer.clear_(tuple(n for n in sae.atomwise if n in optimizer.parameters), mask & counts[..., None])
        return terms, norm, counts, output

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, but the SAEs' own tensors and `updates`."""
        if not hasattr(self.batches, "state_dict"):
            raise ValueError(
                f"{type(self.batches).__name__} does not know where it is (no state_dict), so this training cannot be "
                "resumed: use data.stream(batch_size), or torchdata's StatefulDataLoader"
            )
        batches: Any = self.batches
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"updates": self.updates, "batches": batches.state_dict(), "optimizers": optimizers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; load the SAEs' tensors and their `updates` beside it."""
        if state["optimizers"].keys() != self.optimizers.keys():
            raise ValueError(f"this state is of the SAEs {sorted(state['optimizers'])}, not {sorted(self.optimizers)}")
        self.updates = whole("updates", state["updates"], 0)
        batches: Any = self.batches
        batches.load_state_dict(state["batches"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])


def _inputs(batch: Batch | Tensor | list[Tensor]) -> Tensor:
    """x of a `Batch`, a tensor, or what a torch DataLoader gives of a dataset of one tensor."""
    x = batch if isinstance(batch, Tensor) else batch[0]
    if not isinstance(x, Tensor):
        raise ValueError(f"a batch is a tensor, or begins with one; got {type(batch).__name__} of {type(x).__name__}")
    return x


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _joined_outputs(outputs: list[Output], of_runs: bool) -> Output:
    """One output of several batches."""
    return pytree.tree_map(lambda *tensors: torch.cat(tensors, int(of_runs)), *outputs)


def _program(sae: SAE | Runs) -> SAE:
    """The SAE whose plain attributes hold."""
    return sae.program if isinstance(sae, Runs) else sae


def _touched(sae: SAE | Runs) -> tuple[str, ...]:
    """The parameters that the coming `update_` may write to."""
    program = _program(sae)
    if program.reseed is not None and program.reseed.is_due(program.updates + 1):
        return sae.atomwise
    return () if program.constraint == "free" else ("atoms",)


def _broad(counts: Tensor, like: Tensor) -> Tensor:
    return counts.reshape((*counts.shape, *[1] * (like.ndim - counts.ndim)))

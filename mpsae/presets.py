"""The settings of the paper's studies: one line a value, each with where it comes from.

Sources: *text*, the paper (Costa et al., NeurIPS 2025); *code*, the authors' public code of the synthetic study, which
decides where the text is silent; *ours*, a choice of ours where both are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpsae.checks import one_of, whole
from mpsae.ops.pursuit import Stop
from mpsae.sae.batchtopk import BatchTopKSAE
from mpsae.sae.contract import SAE
from mpsae.sae.controllers import Steering
from mpsae.sae.losses import Revival
from mpsae.sae.matching_pursuit import MatchingPursuitSAE
from mpsae.sae.matryoshka import MatryoshkaSAE
from mpsae.sae.relu import ReLUSAE
from mpsae.sae.topk import TopKSAE
from mpsae.schedules import LearningRate, Points
from mpsae.training import Optimizer, TrainConfig


@dataclass(frozen=True)
class Preset:
    """What one study trains, and how.

    >>> study = presets.VISION
    >>> sae = study.make("mp", d_in=768, k=32)
    >>> config = study.config(rows=len(matrix))
    >>> for update in Training(sae, data.stream(study.batch_size), config): ...
    """

    saes: dict[str, Callable[[int, int, int], SAE]]
    """By kind: an SAE of (d_in, k, seed)."""
    batch_size: int
    """Inputs a batch."""
    lr: Callable[[int], LearningRate]
    """The learning rate, of the number of updates."""
    updates: int | None = None
    """Length, where the study counts updates."""
    epochs: int | None = None
    """Length, where it counts passes over the data."""
    optimizer: Optimizer = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 0.0
    schedules: dict[str, dict[str, Points]] = field(default_factory=dict)
    """By kind."""

    def make(self, kind: str, d_in: int, *, k: int = 0, seed: int = 0) -> SAE:
        """The study's SAE of this kind; k is its sparsity where the study varies it."""
        one_of("kind", kind, tuple(self.saes))
        return self.saes[kind](d_in, k, seed)

    def config(self, rows: int | None = None, *, kind: str | None = None) -> TrainConfig:
        """The study's training of an SAE of this kind; epochs become updates from the number of training rows."""
        updates = self.updates
        if updates is None:
            assert self.epochs is not None
            if rows is None:
                raise ValueError(
                    f"this study trains for {self.epochs} epochs: say how many training rows there are, rows=…"
                )
            updates = math.ceil(self.epochs * whole("rows", rows, 1) / self.batch_size)
        return TrainConfig(
            updates,
            self.lr(updates),
            optimizer=self.optimizer,
            betas=self.betas,
            weight_decay=self.weight_decay,
            clip=self.clip,
            schedules=self.schedules.get(kind, {}) if kind else {},
        )


def _synthetic() -> Preset:
    l0 = 1.36  # text B.1.2: the target; E[ℓ0] of the tree
    steering = Steering(rate=3e-4, ramp=3000)  # code: ×(1 ± 3e-4) an update; text: "low during the first 3,000 steps"
    l1 = 0.1  # code: "scale" at the start
    free: dict[str, Any] = {"constraint": "free"}  # code: rows of norm 1 at the start and not brought back to it
    return Preset(
        saes={
            "mp": lambda d_in, _, seed: MatchingPursuitSAE(
                d_in, 20,  # text B.1: 20 latents
                Stop(
                    21,  # ours: the code has no cap; one more than there are latents changes nothing and is safer
                    residual=0.05,  # text B.1.2
                    repeat=True,  # text B.1.2: until the support stabilises; code: the pick that repeats is kept
                ),
                bias=False,  # code; Algorithm 1 of the text has one
                seed=seed, **free,
            ),
            "relu": lambda d_in, _, seed: ReLUSAE(
                d_in, 20, l0=l0, l1=l1, steering=steering,
                centred=False,  # code: no −b in the encoder
                scaling="norm",  # code: x over a running mean of norms, times √d
                seed=seed, **free,
            ),
            "batchtopk": lambda d_in, _, seed: BatchTopKSAE(
                d_in, 20, 3.0,  # text B.1.2: 3 at first; see schedules
                decay=0.9,  # code: of the average that is the threshold
                centred=False, seed=seed, **free,
            ),
            "matryoshka": lambda d_in, _, seed: MatryoshkaSAE(
                d_in, 20, l0,
                nested=5,  # code: 5 prefixes drawn from a Pareto law of power ½
                activation="relu",  # code
                reduce="mean",  # code; the text sums
                sort_every=1,  # code re-sorts by energy, how often is ours
                l1=l1, steering=steering, centred=False, scaling="norm", seed=seed, **free,
            ),
        },
        batch_size=200,  # text B.1.2
        updates=15_000,  # text B.1.2
        lr=lambda _: LearningRate(
            3e-2,  # text B.1.2
            "stable",  # code: constant, then a linear fall
            warmup=100,  # code
            cooldown=0.2,  # code: the last 20 %
            final=0.1,  # code: to a tenth
        ),
        betas=(0.5, 0.9375),  # text B.1.2
        clip=1.0,  # text B.1.2
        schedules={"batchtopk": {"l0": Points((0, 3.0), (1000, 3.0), (1000, l0))}},  # text B.1.2
    )  # fmt: skip


def _vision(epochs: int) -> Preset:
    revival = Revival(1e-5, "gradient")  # text B.2: the factor; ours: the reading that gives a gradient
    ball: dict[str, Any] = {"constraint": "ball", "revival": revival}  # text B.2: ‖D_i‖ ≤ 1
    width = 25  # text 4.2, B.2: expansion factor
    return Preset(
        saes={
            "mp": lambda d_in, k, seed: MatchingPursuitSAE(d_in, width * d_in, k, seed=seed, **ball),
            "relu": lambda d_in, k, seed: ReLUSAE(
                d_in, width * d_in, l0=k,
                steering=Steering(one_sided=True),  # text B.2: raised when the batch's ℓ0 exceeds the target
                seed=seed, **ball,
            ),
            "topk": lambda d_in, k, seed: TopKSAE(d_in, width * d_in, k, seed=seed, **ball),
            "batchtopk": lambda d_in, k, seed: BatchTopKSAE(d_in, width * d_in, k, seed=seed, **ball),
        },
        batch_size=8000,  # text B.2
        epochs=epochs,
        lr=lambda updates: LearningRate(
            5e-4,  # text B.2
            "cosine",  # text B.2
            warmup=max(updates // 20, 1),  # ours: the length of the warm-up is unsaid
            first=1e-6 / 5e-4,  # text B.2: from 1e-6
            final=1e-6 / 5e-4,  # text B.2: back to 1e-6
        ),
        optimizer="adamw",  # text B.2; 4.2 says Adam
        betas=(0.9, 0.999),  # ours: unsaid
        weight_decay=1e-5,  # text B.2
    )  # fmt: skip


def _language() -> Preset:
    width, l0 = 4, 100  # text B.5.1: p = 4 m; ℓ0 = 100
    shared: dict[str, Any] = {"scaling": "standard"}  # text B.5.1: standardised by mean and deviation, then to norm √m
    return Preset(
        saes={
            "mp": lambda d_in, k, seed: MatchingPursuitSAE(d_in, width * d_in, k or l0, seed=seed, **shared),
            "topk": lambda d_in, k, seed: TopKSAE(d_in, width * d_in, k or l0, seed=seed, **shared),
            # text B.5.1 searches a constant λ for ℓ0 100; ours: λ is steered there
            "relu": lambda d_in, k, seed: ReLUSAE(d_in, width * d_in, l0=k or l0, seed=seed, **shared),
        },
        batch_size=5000,  # text B.5.1
        updates=40_000,  # text B.5.1: "approximately 40 K"
        lr=lambda _: LearningRate(1e-3, "constant"),  # text B.5.1
        betas=(0.9, 0.95),  # text B.5.1
        weight_decay=1e-4,  # text B.5.1; ours: L2, as Adam has it
        clip=1.0,  # text B.5.1
    )


SYNTHETIC = _synthetic()
VISION = _vision(epochs=50)  # text 4.2, B.2
MULTIMODAL = _vision(epochs=20)  # text B.4: "mirrored that used for vision models for a total of 20"; ℓ0 5
LANGUAGE = _language()

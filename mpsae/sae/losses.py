"""Terms of losses that several SAEs share.

Squared errors are summed over coordinates; means are over inputs, all leading dimensions of x [..., d_in].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mpsae.checks import number, one_of, whole
from mpsae.codes import Codes
from mpsae.ops.decode import sum_gathered


@dataclass(frozen=True)
class Auxiliary:
    """Silent atoms learn to write what the others leave: the auxiliary loss of Gao et al. (2024).

    Of the atoms that have been silent for more than `after` inputs, the `k` of largest pre-activation an input, of
    either sign and so never without gradient, write the residual: weight · ‖r − Σ p_j d_j‖².
    """

    weight: float = 1 / 32
    """Weight of the term."""
    k: int | None = None
    """Silent atoms an input; None is half of d_in."""
    after: int = 1_000_000
    """Inputs without firing after which an atom counts as silent."""

    def __post_init__(self) -> None:
        number("the weight of Auxiliary", self.weight)
        whole("the k of Auxiliary", 1 if self.k is None else self.k, 1)
        whole("the after of Auxiliary", self.after, 0)


@dataclass(frozen=True)
class Revival:
    """Atoms that fire for no input of a batch are nudged: the paper's revive factor, in its two readings.

    `"gradient"`: −weight · Σ_j mean pre_j over these atoms j is a term of the loss, so that a unit far below zero gets
    a gradient too. `"added"`: weight is added to their pre-activations in the forward pass, as the text says; a unit
    below −weight still gets none.
    """

    weight: float = 1e-5
    """The paper's revive factor."""
    how: Literal["gradient", "added"] = "gradient"
    """Which reading."""

    def __post_init__(self) -> None:
        number("the weight of Revival", self.weight)
        one_of("the how of Revival", self.how, get_args(Literal["gradient", "added"]))


def squared_error(residual: Tensor) -> Tensor:
    """mean ‖r‖² over inputs, residual [..., d_in]."""
    return residual.square().sum(-1).mean()


def l1(acts: Tensor, atoms: Tensor) -> Tensor:
    """mean Σ_j |z_j| ‖d_j‖ over inputs, acts [..., d_sae]: shrinking z while growing d gains nothing."""
    return (acts.abs() @ atoms.to(acts.dtype).norm(dim=-1)).mean()


def mean_l0(acts: Codes | Tensor) -> Tensor:
    """How many atoms an input is written with, on average; picks where acts are codes."""
    active = acts.lengths if isinstance(acts, Codes) else (acts.abs() > 0).sum(-1)  # NaN is no firing
    return active.to(torch.get_default_dtype()).mean()


def auxiliary(residual: Tensor, pre: Tensor, silent: Tensor, atoms: Tensor, k: int) -> Tensor:
    """mean ‖r − Σ p_j d_j‖² over the k silent atoms of largest pre [..., d_sae] an input; 0 where none is silent."""
    residual = residual.detach()
    values, indices = pre.where(silent, -torch.inf).topk(min(k, pre.shape[-1]), dim=-1)  # fixed width: never waits
    values = values.where(values > -torch.inf, 0.0)
    return squared_error(residual - sum_gathered(values, indices.int(), atoms)) * silent.any()


def jump(pre: Tensor, threshold: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """JumpReLU's z = p · H(p − θ) and its gate H(p − θ), with the straight-through gradients of Rajamanoharan (2024).

    ∂z/∂p = H, ∂z/∂θ = −(θ/ε) K((p − θ)/ε), ∂H/∂θ = −(1/ε) K((p − θ)/ε), K the rectangle of width 1, ε the bandwidth.
    """
    pre = pre.relu()
    with torch.no_grad():
        gate = (pre > threshold).to(pre.dtype)
        near = ((pre - threshold).abs() < bandwidth / 2).to(pre.dtype) / bandwidth
        height = threshold.detach()
    change = threshold - height  # 0, but the gradient goes through it
    return pre * gate - height * near * change, gate - near * change

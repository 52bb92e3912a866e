"""What an SAE does to its inputs before it reads them: u = (x − shift) · scale, and back."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mpsae.ops.pursuit import widest

if TYPE_CHECKING:
    from mpsae.sae.contract import SAE

Scaling = Literal["none", "norm", "scalar", "standard"]
"""All but `"none"` bring inputs to a mean norm of √d_in: `"norm"` by a running mean of norms, as the authors' synthetic
code; `"scalar"` less the mean, by one number; `"standard"` less the mean, over the deviation of each coordinate."""
DECAY = 0.99
"""Of the running mean of norms. It starts from 0, as in the authors' code: the first batches are read 100, 50, … times
too large, which ReLU and a warm-up forgive, and a threshold learned from batches takes long to forget."""


def register_(sae: SAE, scaling: Scaling) -> None:
    """Give a new SAE the buffers that its scaling needs."""
    if scaling == "norm":
        sae.register_buffer("mean_norm", torch.zeros(()))
    elif scaling != "none":
        sae.register_buffer("shift", torch.zeros(sae.d_in))
        sae.register_buffer("scale", torch.ones(() if scaling == "scalar" else (sae.d_in,)))
        sae.register_load_state_dict_post_hook(_notice)


def _notice(sae: SAE, _: Any) -> None:
    """A state dict that brings a scale brings one that was taken from data."""
    sae.is_fitted = bool((sae.get_buffer("scale") != 1).any())


@torch.no_grad()
def fit_(sae: SAE, x: Tensor) -> None:
    """Take shift and scale from data [B, d_in]."""
    x = x.reshape(-1, sae.d_in).to(torch.float64)
    if len(x) < 2:
        raise ValueError(f"a scaling is taken from many inputs; got {len(x)}")
    shift = x.mean(0)
    spread = torch.ones_like(shift)
    if sae.scaling == "standard":
        spread = x.std(0, correction=0)
        if not (spread > 0).all():
            dead = (spread == 0).nonzero().flatten().tolist()
            raise ValueError(
                f"coordinate {dead[0]} of x never varies ({len(dead)} do not), so its standard deviation cannot scale "
                'it: drop it, or use scaling="scalar"'
            )
    norm = ((x - shift) / spread).norm(dim=-1).mean()
    if not norm > 0:
        raise ValueError("all inputs are the same, so there is nothing to scale: fit on data that vary")
    scale = math.sqrt(sae.d_in) / (norm * spread)
    sae.get_buffer("shift").copy_(shift)
    sae.get_buffer("scale").copy_(scale.mean() if sae.scaling == "scalar" else scale)
    sae.is_fitted = True


@torch.no_grad()
def next_mean_norm(sae: SAE, x: Tensor) -> Tensor:
    """The running mean of norms with this batch in it; inputs with NaN or Inf count as 0."""
    if not x.numel():
        return sae.get_buffer("mean_norm")
    norms = x.to(widest(x)).norm(dim=-1).nan_to_num(0.0, posinf=0.0)
    return DECAY * sae.get_buffer("mean_norm") + (1 - DECAY) * norms.mean()


def shift_and_scale(sae: SAE, x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """shift [d_in] and scale [] or [d_in]; None is 0 and 1. In training the batch x itself is part of the mean norm."""
    if sae.scaling == "none":
        return None, None
    if sae.scaling == "norm":
        norm = next_mean_norm(sae, x) if sae.training and x is not None else sae.get_buffer("mean_norm")
        return None, math.sqrt(sae.d_in) / norm.where(norm > 0, math.sqrt(sae.d_in))
    if not sae.is_fitted:
        raise ValueError(f'scaling="{sae.scaling}" is taken from data: call sae.fit_scaling_(x) first')
    return sae.get_buffer("shift"), sae.get_buffer("scale")


def applied(x: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    """u = (x − shift) · scale, in float32 or wider."""
    if shift is None and scale is None:
        return x
    x = x.to(widest(x))
    x = x if shift is None else x - shift
    return x if scale is None else x * scale


def undone(u: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    """x = u / scale + shift, in float32 or wider."""
    if shift is None and scale is None:
        return u
    u = u.to(widest(u))
    u = u if scale is None else u / scale
    return u if shift is None else u + shift


@torch.no_grad()
def folded(sae: SAE) -> SAE:
    """The SAE that reads unscaled inputs and writes the same x̂; its codes are divided by the scale.

    A scale for each coordinate changes the inner products that codes are made of, so it stays.
    """
    shift, scale = shift_and_scale(sae, None)  # refuses what was never taken from data
    if sae.scaling in ("none", "standard"):
        return sae
    other = copy.deepcopy(sae).eval()
    assert scale is not None
    for name in ("mean_norm", "shift", "scale"):
        other._buffers.pop(name, None)
    if shift is not None:
        other.removed_mean = tuple(shift.tolist())
    other.scaling = "none"
    other._fold_(torch.zeros(sae.d_in).to(scale) if shift is None else shift, scale)
    return other.train(sae.training)

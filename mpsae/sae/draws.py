"""Random numbers from a state that is a tensor: one of many runs draws what it would draw alone, without the host."""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB
"""The step of SplitMix64, 2⁶⁴ over the golden ratio, as a signed number."""


def uniform(state: Tensor, count: int) -> Tensor:
    """`count` numbers in (0, 1), float64, of the stream that the int64 scalar `state` names.

    SplitMix64 (Steele, Lea and Flood 2014) in wrapping int64 arithmetic, the same on every device.
    """
    z = state + torch.arange(1, count + 1, device=state.device) * GOLDEN
    z = (z ^ _shifted(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shifted(z, 27)) * -0x6B2FB644ECCEEE15
    z = z ^ _shifted(z, 31)
    return (_shifted(z, 11).to(torch.float64) + 0.5) * 2.0**-53


def advanced(state: Tensor, count: int) -> Tensor:
    """The state after `count` numbers."""
    return state + torch.full_like(state, GOLDEN) * count  # wraps, as a product of Python's would not


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits as if z were unsigned."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)

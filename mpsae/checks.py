"""What arguments must be, said in one way: the rule, the value, what to do."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from torch import Tensor


def whole(name: str, value: Any, least: int, why: str = "") -> int:
    """`value` as an int, if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}{why and f' ({why})'}; got {value!r}")
    return int(value)


def number(name: str, value: Any, why: str = "") -> float:
    """`value` as a float, if it is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be a finite number ≥ 0{why and f' ({why})'}; got {value!r}")
    return float(value)


def tensor(name: str, value: Any) -> Tensor:
    """`value`, if it is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor; got {type(value).__name__}: use torch.as_tensor({name})")
    return value


def flag(name: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return value


def option(name: str, value: Any, kind: type) -> Any:
    """`value`, if it is of the dataclass `kind`, or None."""
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__} or None; got {value!r}: use {name}={kind.__name__}(…)")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """`value`, if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
    return value

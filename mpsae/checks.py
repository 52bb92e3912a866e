"""What arguments must be, said in one way: the rule, the value, what to do."""

from __future__ import annotations

import math
from typing import Any


def whole(name: str, value: Any, least: int, why: str = "") -> int:
    """`value`, if it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}{why and f' ({why})'}; got {value!r}")
    return value


def number(name: str, value: Any, why: str = "") -> float:
    """`value`, if it is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number ≥ 0{why and f' ({why})'}; got {value!r}")
    return value


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """`value`, if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
    return value

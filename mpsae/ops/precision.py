"""Matrix products that are what they say, whatever precision the program around them allows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["exact", "fast"]

# torch's setting is one for all threads: the first to need it sets it, the last to leave puts it back.
_lock = threading.Lock()
_inside: dict[str, int] = {}
_allowed: dict[str, str] = {}


@contextmanager
def multiplying(device: torch.device, precision: str) -> Iterator[None]:
    """Inside, autocast is off; with `"exact"` fp32 products are IEEE, with `"fast"` as torch is set (TF32, say)."""
    with torch.autocast(device.type, enabled=False):
        if precision == "fast" or device.type not in ("cpu", "cuda"):
            yield
            return
        _enter(device.type)
        try:
            yield
        finally:
            _leave(device.type)


def _setting(kind: str) -> Any:
    """The place where torch keeps it for products on a kind of device, or for all of torch."""
    backends: Any = torch.backends
    return {"cuda": backends.cuda.matmul, "cpu": backends.mkldnn.matmul}.get(kind, backends)


def _enter(kind: str) -> None:
    with _lock:
        _inside[kind] = _inside.get(kind, 0) + 1
        if _inside[kind] == 1:
            allowed = _setting(kind).fp32_precision
            if allowed not in ("none", "ieee"):
                # What was inherited from the setting for all of torch must go on following it.
                _allowed[kind] = "none" if allowed == _setting("").fp32_precision else allowed
                _setting(kind).fp32_precision = "ieee"


def _leave(kind: str) -> None:
    with _lock:
        _inside[kind] -= 1
        if not _inside[kind] and kind in _allowed:
            _setting(kind).fp32_precision = _allowed.pop(kind)

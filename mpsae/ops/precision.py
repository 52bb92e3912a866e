"""Matrix products that are what they say, whatever precision the program around them allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["exact", "fast"]


@contextmanager
def products(device: torch.device, precision: str) -> Iterator[None]:
    """Inside, autocast is off; with `"exact"` fp32 products are IEEE, with `"fast"` as torch is set (TF32, say)."""
    backends: Any = torch.backends
    backend = {"cuda": backends.cuda.matmul, "cpu": backends.mkldnn.matmul}.get(device.type)
    with torch.autocast(device.type, enabled=False):
        # Written only where needed: the setting is one for all threads.
        if precision == "fast" or backend is None or backend.fp32_precision in ("none", "ieee"):
            yield
            return
        allowed = backend.fp32_precision
        backend.fp32_precision = "ieee"
        try:
            yield
        finally:
            backend.fp32_precision = allowed

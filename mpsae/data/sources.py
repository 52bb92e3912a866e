"""Where rows come from: tensors, matrix files that are mapped and never read whole, generators."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

SAFETENSORS_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
}  # fmt: skip
NUMPY_TYPES = {"<f8": torch.float64, "<f4": torch.float32, "<f2": torch.float16}


@runtime_checkable
class Generator(Protocol):
    """Draws inputs; `mpsae.data.synthetic.Tree` is one."""

    d_in: int

    def sample(self, count: int, generator: torch.Generator) -> Any:
        """x [count, d_in], or (x, z) with the answer z [count, ...]."""


def open_matrix(path: Path) -> Tensor:
    """The matrix [rows, d_in] in a .npy or .safetensors file, mapped: rows are read when they are asked for."""
    readers: dict[str, Callable[[Path], Tensor]] = {".npy": _npy, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise ValueError(f"{path} is neither .npy nor .safetensors: save the matrix [rows, d_in] as one of them")
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give the file of a matrix")
    return readers[path.suffix](path)


def _npy(path: Path) -> Tensor:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = reader(file)
        except ValueError as error:
            raise ValueError(f"{path} is no .npy file ({error}): save it again with numpy.save") from error
        start = file.tell()
    kind = NUMPY_TYPES.get(dtype.str)
    if kind is None or len(shape) != 2 or fortran:
        order = ", in Fortran order" if fortran else ""
        raise ValueError(
            f"{path} must hold a matrix [rows, d_in] of float64, float32 or float16 in C order; it holds "
            f"{dtype} {list(shape)}{order}: save numpy.ascontiguousarray(x, dtype=numpy.float32)"
        )
    return _mapped(path, start, kind, shape)


def _safetensors(path: Path) -> Tensor:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if 2 <= length <= path.stat().st_size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file: its header cannot be read; save it again")
    header.pop("__metadata__", None)
    matrices = [about for about in header.values() if len(about["shape"]) == 2 and about["dtype"] in SAFETENSORS_TYPES]
    if len(matrices) != 1:
        found = ", ".join(f"{name} {about['dtype']} {about['shape']}" for name, about in header.items()) or "nothing"
        raise ValueError(f"{path} must hold one floating matrix [rows, d_in]; it holds {found}: save it alone")
    (about,) = matrices
    return _mapped(path, 8 + length + about["data_offsets"][0], SAFETENSORS_TYPES[about["dtype"]], about["shape"])


def _mapped(path: Path, start: int, dtype: torch.dtype, shape: Any) -> Tensor:
    rows, width = shape
    end = start + rows * width * dtype.itemsize
    size = path.stat().st_size
    if size < end:
        raise ValueError(f"{path} was cut short: its header asks for {end} bytes, the file has {size}: copy it again")
    if not rows:
        return torch.empty(0, width, dtype=dtype)
    # Pages are private, so nothing can be written into the file through the tensor.
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return whole[start:end].view(dtype).reshape(rows, width)

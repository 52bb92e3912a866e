"""Files that are whole or not there: written beside their place, synced, then moved into it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write(path: Path, data: bytes) -> None:
    """`data` in the file `path`, whole or not at all; what stood there before stays until then."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp gives rights to the owner alone
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """`content` as JSON in the file `path`, whole or not at all; NaN and Inf, which JSON lacks, are refused."""
    write(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask

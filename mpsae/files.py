"""Files that are whole or not there: written beside their place, synced, then moved into it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write(path: Path, data: bytes) -> None:
    """`data` in the file `path`, whole or not at all; what stood there before stays until then."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """The folder `path` and those above it, on the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
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

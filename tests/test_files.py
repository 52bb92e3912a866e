import errno
import os
import stat

import pytest

from mpsae import files


def test_a_write_that_fails_leaves_what_stood_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write(path, b"first")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_file_is_synced_before_it_takes_its_place_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def replace(source, target):
        events.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    files.write(tmp_path / "file", b"x")
    assert events == ["file", "replace", "folder"]


def test_others_may_read_what_open_would_let_them_read(tmp_path):
    files.write(tmp_path / "ours", b"x")
    (tmp_path / "theirs").write_bytes(b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_json_without_meaning_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "file", {"x": float("nan")})
    assert not list(tmp_path.iterdir())

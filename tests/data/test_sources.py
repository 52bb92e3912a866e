import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mpsae.data.sources import Generator, open_matrix
from mpsae.data.synthetic import Tree


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_npy_file_is_the_matrix_it_holds(tmp_path, dtype):
    x = torch.randn(17, 5).to(dtype)
    np.save(tmp_path / "x.npy", x.numpy())
    opened = open_matrix(tmp_path / "x.npy")
    assert opened.dtype == dtype
    assert torch.equal(opened, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_safetensors_file_is_the_one_matrix_it_holds(tmp_path, dtype):
    x = torch.randn(17, 5).to(dtype)
    save_file({"more": torch.arange(3), "x": x}, tmp_path / "x.safetensors", metadata={"made": "here"})
    opened = open_matrix(tmp_path / "x.safetensors")
    assert opened.dtype == dtype
    assert torch.equal(opened, x)


def test_an_empty_matrix_has_no_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 5), np.float32))
    assert open_matrix(tmp_path / "x.npy").shape == (0, 5)


def test_nothing_can_be_written_into_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    open_matrix(tmp_path / "x.npy").zero_()
    assert np.load(tmp_path / "x.npy").all()


def cut(path):
    path.write_bytes(path.read_bytes()[:-4])


def test_files_that_hold_no_matrix_are_refused(tmp_path):
    path = tmp_path / "x.npy"
    for array, words in (
        (np.zeros(3, np.float32), r"float32 \[3\]"),
        (np.zeros((3, 2), np.int64), "int64"),
        (np.asfortranarray(np.random.default_rng(0).random((3, 2))), "in Fortran order"),
    ):
        np.save(path, array)
        with pytest.raises(ValueError, match=words):
            open_matrix(path)
    np.save(path, np.ones((3, 2), np.float32))
    cut(path)
    with pytest.raises(ValueError, match="cut short: its header asks for 152 bytes, the file has 148"):
        open_matrix(path)
    path.write_bytes(b"not numpy at all")
    with pytest.raises(ValueError, match=r"no \.npy file"):
        open_matrix(path)
    tensors = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3, 2), "b": torch.ones(3, 2)}, tensors)
    with pytest.raises(ValueError, match=r"one floating matrix.*a F32 \[3, 2\], b F32 \[3, 2\]"):
        open_matrix(tensors)
    save_file({"a": torch.ones(3, 2)}, tensors)
    cut(tensors)
    with pytest.raises(ValueError, match="cut short"):
        open_matrix(tensors)
    tensors.write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="header cannot be read"):
        open_matrix(tensors)
    with pytest.raises(ValueError, match=r"neither \.npy nor \.safetensors"):
        open_matrix(tmp_path / "x.csv")
    with pytest.raises(ValueError, match="does not exist"):
        open_matrix(tmp_path / "y.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        open_matrix(tmp_path / "folder.npy")


def test_the_tree_is_a_generator():
    assert isinstance(Tree(), Generator)

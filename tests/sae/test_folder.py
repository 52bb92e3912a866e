"""What a broken or foreign folder says, and that nothing is lost while one is written."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load, save

import mpsae
from mpsae import MatchingPursuitSAE, files


@pytest.fixture
def folder(tmp_path):
    MatchingPursuitSAE(4, 6, 2).save(tmp_path / "sae")
    return tmp_path / "sae"


def edit(folder, change):
    about = json.loads((folder / "sae.json").read_text())
    change(about)
    (folder / "sae.json").write_text(json.dumps(about))


def weights(folder):
    return next(folder.glob("*.safetensors"))


def drop_json(folder):
    (folder / "sae.json").unlink()


def truncate(folder):
    weights(folder).write_bytes(weights(folder).read_bytes()[:-10])


def flip_a_byte(folder):
    data = bytearray(weights(folder).read_bytes())
    data[-1] ^= 1
    weights(folder).write_bytes(data)


def replace_weights(folder, data):
    """Other bytes under a name and description that fit them."""
    digest = hashlib.sha256(data).hexdigest()
    (folder / f"sae-{digest[:16]}.safetensors").write_bytes(data)
    about = {"file": f"sae-{digest[:16]}.safetensors", "bytes": len(data), "sha256": digest}
    edit(folder, lambda a: a.update(weights=about))


def replace_tensors(folder, **tensors):
    replace_weights(folder, save(load(weights(folder).read_bytes()) | tensors))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_json, r"has no sae\.json; found sae-[0-9a-f]{16}\.safetensors: give a folder"),
        (lambda folder: weights(folder).unlink(), r"without weights: sae-.* is missing; found sae\.json"),
        (truncate, "damaged or cut short: sae.json says .* bytes"),
        (flip_a_byte, "another content: copy the folder again"),
        (lambda folder: (folder / "sae.json").write_text('{"version": 1,'), "is not JSON"),
        (lambda folder: (folder / "sae.json").write_text("[]"), "is of version None"),
        (lambda folder: edit(folder, lambda a: a.update(version=7)), "is of version 7, mpsae .* reads version 1: upg"),
        (lambda folder: edit(folder, lambda a: a.update(kind="magic")), "kind 'magic', mpsae .* knows mp"),
        (lambda folder: edit(folder, lambda a: a.update(more=1)), "has .*more"),
        (lambda folder: edit(folder, lambda a: a.pop("weights")), "it needs .*weights"),
        (lambda folder: edit(folder, lambda a: a.update(version=True)), "is of version True"),
        (lambda folder: edit(folder, lambda a: a.update(weights=None)), "weights is None"),
        (lambda folder: edit(folder, lambda a: a.update(settings=None)), "settings is None"),
        (lambda folder: edit(folder, lambda a: a.update(kind=["mp"])), "kind is"),
        (lambda folder: edit(folder, lambda a: a.update(updates="many")), "updates is 'many'"),
        (lambda folder: edit(folder, lambda a: a["weights"].update(bytes="9")), "weights.bytes is '9'"),
        (lambda folder: edit(folder, lambda a: a["weights"].pop("file")), r"it needs weights\.\{file"),
        (lambda folder: edit(folder, lambda a: a["weights"].update(file="../x")), r"weights\.file is '\.\./x'"),
        (lambda folder: edit(folder, lambda a: a["settings"].update(bias="no")), "bias must be True or False"),
        (lambda folder: replace_weights(folder, b"not safetensors"), "is no safetensors file"),
        (lambda folder: replace_tensors(folder, bias=torch.zeros(4).double()), "not of one SAE"),
        (lambda folder: replace_tensors(folder, silent=torch.zeros(6)), "not of one SAE"),
        (lambda folder: replace_tensors(folder, bias=torch.full((4,), torch.nan)), "the bias must be finite; 4 of 4"),
        (lambda folder: edit(folder, lambda a: a["settings"].pop("bias")), "must have the settings"),
        (lambda folder: edit(folder, lambda a: a["settings"].update(d_sae=5)), "expected .*found .*not of one SAE"),
        (
            lambda folder: edit(folder, lambda a: a["settings"].update(stop=dict.fromkeys(a["settings"]["stop"], 0))),
            "≥ 1",
        ),
        (lambda folder: edit(folder, lambda a: a["settings"]["stop"].pop("repeat")), "stop must have the keys"),
        (lambda folder: edit(folder, lambda a: a["settings"].update(stop={"leaps": 2})), "leaps"),
    ],
)
def test_a_folder_that_cannot_be_trusted_is_refused_with_what_was_found(folder, damage, words):
    damage(folder)
    with pytest.raises(ValueError, match=words):
        mpsae.load(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="it does not exist"):
        mpsae.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="it is a file"):
        mpsae.load(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="it is empty"):
        mpsae.load(tmp_path / "empty")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-3)])
def test_a_sphere_refuses_other_norms_and_says_how_to_open_them(tmp_path, dtype, tolerance):
    sae = MatchingPursuitSAE(64, 6, 2)
    with torch.no_grad():
        sae.atoms[4] *= 1 + 3 * tolerance
    sae.to(dtype)
    with pytest.raises(ValueError, match=r"not saved .*1 of 6 do not, atom 4 has 1\.0.*sae\.constrain_\(\)"):
        sae.save(tmp_path)
    assert not list(tmp_path.iterdir())
    sae.constraint = "free"
    sae.save(tmp_path)
    edit(tmp_path, lambda about: about["settings"].update(constraint="sphere"))
    with pytest.raises(ValueError, match=r"1 of 6 do not, atom 4 has 1\.0.*constraint=\"free\""):
        mpsae.load(tmp_path)
    free = mpsae.load(tmp_path, constraint="free")
    assert free.constraint == "free"
    assert torch.equal(free.atoms, sae.atoms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(tmp_path, dtype):
    MatchingPursuitSAE(64, 500, 2).to(dtype).save(tmp_path)
    assert mpsae.load(tmp_path).atoms.dtype == dtype


def test_a_ball_allows_shorter_atoms_and_refuses_longer_ones(tmp_path):
    sae = MatchingPursuitSAE(4, 6, 2, constraint="ball")
    with torch.no_grad():
        sae.atoms[0] *= 0.5
    sae.save(tmp_path)
    mpsae.load(tmp_path)
    with torch.no_grad():
        sae.atoms[0] *= 4
    with pytest.raises(ValueError, match="norm at most 1"):
        sae.save(tmp_path)
    sae.constrain_()
    sae.save(tmp_path)


def test_saving_again_replaces_and_leaves_other_files_alone(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "sae-mine.safetensors").write_text("mine")
    first = weights(folder).name
    MatchingPursuitSAE(4, 6, 3, seed=1).save(folder)
    names = {entry.name for entry in folder.iterdir()}
    assert {"notes.txt", "sae-mine.safetensors", "sae.json"} < names
    assert len(names) == 4
    assert first not in names
    assert mpsae.load(folder).stop.steps == 3


@pytest.mark.parametrize("step", [0, 1])
def test_a_save_that_breaks_off_loses_nothing(folder, monkeypatch, step):
    real, calls = files.write, []

    def breaking(path, data):
        calls.append(path)
        if len(calls) > step:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(files, "write", breaking)
    with pytest.raises(OSError, match="No space left"):
        MatchingPursuitSAE(4, 6, 3, seed=1).save(folder)
    assert mpsae.load(folder).stop.steps == 2


def test_the_folder_is_small_and_plain(folder):
    about = json.loads((folder / "sae.json").read_text())
    assert about["kind"] == "mp"
    assert about["settings"]["stop"]["steps"] == 2
    assert about["made_with"]["mpsae"] == mpsae.__version__
    assert sorted(entry.name for entry in folder.iterdir()) == [about["weights"]["file"], "sae.json"]

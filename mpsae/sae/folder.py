"""The folder of one SAE: `sae.json` says what it is and names the file of its tensors (docs/formats.md)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import torch
from torch import Tensor

import mpsae
from mpsae import files
from mpsae.checks import one_of
from mpsae.ops.pursuit import widest
from mpsae.sae.batchtopk import BatchTopKSAE
from mpsae.sae.contract import SAE, Constraint
from mpsae.sae.jumprelu import JumpReLUSAE
from mpsae.sae.matching_pursuit import MatchingPursuitSAE
from mpsae.sae.matryoshka import MatryoshkaSAE
from mpsae.sae.orthogonal_pursuit import OrthogonalPursuitSAE
from mpsae.sae.relu import ReLUSAE
from mpsae.sae.topk import TopKSAE

VERSION = 1
VARIANTS = (
    MatchingPursuitSAE, OrthogonalPursuitSAE, ReLUSAE, TopKSAE, BatchTopKSAE, JumpReLUSAE, MatryoshkaSAE,
)  # fmt: skip
KINDS: dict[str, type[SAE]] = {variant.kind: variant for variant in VARIANTS}
WEIGHTS = re.compile(r"sae-[0-9a-f]{16}\.safetensors")
NORM_TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
"""By how much the norm of a stored unit atom may differ from 1; 1e-4 where nothing is listed."""
FORM = {
    "version": int,
    "kind": str,
    "settings": dict,
    "updates": int,
    "removed_mean": (list, NoneType),
    "weights": dict,
    "made_with": dict,
}
"""The keys of sae.json and what each holds."""


def save(sae: SAE, path: Path) -> None:
    """Write the folder, scaling folded where that is exact. An SAE that was there stays whole until the new one is."""
    import safetensors.torch

    sae = sae.folded()

    sae._check_tensors()
    _check_norms(sae, f"not saved to {path}", "sae.constrain_() brings them to it, and sae.update_() after each update")
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in sae.state_dict().items()}
    data = safetensors.torch.save({name: t for name, t in tensors.items() if name not in sae.setting_buffers})
    digest = hashlib.sha256(data).hexdigest()
    # Named by its content: until sae.json names the new file, it still names the old one.
    weights = path / f"sae-{digest[:16]}.safetensors"
    about = {
        "version": VERSION,
        "kind": sae.kind,
        "settings": sae.settings(),
        "updates": sae.updates,
        "removed_mean": None if sae.removed_mean is None else list(sae.removed_mean),
        "weights": {"file": weights.name, "bytes": len(data), "sha256": digest},
        "made_with": {"mpsae": mpsae.__version__, "torch": str(torch.__version__)},
    }
    files.make_folder(path)
    files.write(weights, data)
    files.write_json(path / "sae.json", about)
    for old in path.glob("sae-*.safetensors"):
        if old != weights and WEIGHTS.fullmatch(old.name):
            old.unlink()


def load(path: str | Path, *, device: str | torch.device = "cpu", constraint: Constraint | None = None) -> SAE:
    """Open the SAE in the folder `path`, in eval mode; `constraint` replaces the one it was saved with.

    >>> sae = mpsae.load("runs/a/saes/mp")
    """
    path = Path(path)
    if constraint is not None:
        one_of("constraint", constraint, get_args(Constraint))
    about = _described(path)
    tensors = _tensors(path, about["weights"])
    sae = _built(path, about, constraint)
    parameters = dict(sae.named_parameters()).keys()
    expected = _forms({n: t for n, t in sae.state_dict().items() if n not in sae.setting_buffers}, parameters)
    found = _forms(tensors, parameters)
    if found != expected or len({t.dtype for name, t in tensors.items() if name in parameters}) > 1:
        raise ValueError(
            f"{path / about['weights']['file']} does not hold the tensors of the SAE that sae.json describes: "
            f"expected {expected}, parameters of one type, found {found}: the two files are not of one SAE; "
            "copy the folder again"
        )
    sae.load_state_dict(tensors | {name: sae.get_buffer(name) for name in sae.setting_buffers}, assign=True)
    sae.updates = about["updates"]
    sae.removed_mean = None if about["removed_mean"] is None else tuple(map(float, about["removed_mean"]))
    try:
        sae._check_tensors()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    _check_norms(sae, f"{path} is not to be trusted", 'open it as it is with load(path, constraint="free")')
    return sae.to(device).eval()


def _described(path: Path) -> dict[str, Any]:
    """What sae.json says, once it is known to be something this version understands."""
    description = path / "sae.json"
    if not description.is_file():
        raise ValueError(
            f"{path} is no SAE's folder: it has no sae.json; {_contents(path)}: give a folder that `sae.save` made"
        )
    try:
        about = json.loads(description.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{description} is not JSON ({error}): it was damaged or cut short; copy it again") from error
    version = about.get("version") if isinstance(about, dict) else None
    if version != VERSION or version is True:
        raise ValueError(
            f"{description} is of version {version!r}, mpsae {mpsae.__version__} reads version {VERSION}: "
            "upgrade mpsae, or save the SAE with the version that made it"
        )
    wrong = _misfit(about, FORM)
    if not wrong:
        wrong = _misfit(about["weights"], {"file": str, "bytes": int, "sha256": str}, "weights.")
    if not wrong and not WEIGHTS.fullmatch(about["weights"]["file"]):
        wrong = f"weights.file is {about['weights']['file']!r}"
    if wrong:
        raise ValueError(
            f"{description} is not as docs/formats.md has it: {wrong}: save the SAE again with sae.save, or copy the "
            "folder again"
        )
    return about


def _misfit(found: dict[str, Any], form: dict[str, Any], within: str = "") -> str:
    """What of `found` is not of the form; empty where all is."""
    if found.keys() != form.keys():
        return f"it needs {within}{{{', '.join(form)}}} and has {within}{{{', '.join(map(str, found))}}}"
    for key, kind in form.items():
        if not isinstance(found[key], kind) or (isinstance(found[key], bool) and kind is int):
            return f"{within}{key} is {found[key]!r}"
    return ""


def _forms(tensors: dict[str, Tensor], parameters: Collection[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each; parameters may be of any floating type."""
    return {
        name: (tuple(t.shape), "floating" if name in parameters and t.is_floating_point() else str(t.dtype))
        for name, t in tensors.items()
    }


def _tensors(path: Path, weights: dict[str, Any]) -> dict[str, Tensor]:
    import safetensors
    import safetensors.torch

    file = path / weights["file"]
    if not file.is_file():
        raise ValueError(
            f"{path} is an SAE's folder without weights: {file.name} is missing; {_contents(path)}: copy it again"
        )
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != weights["sha256"]:
        raise ValueError(
            f"{file} was damaged or cut short: sae.json says {weights['bytes']} bytes with SHA-256 "
            f"{weights['sha256'][:16]}…, the file has {len(data)} bytes and another content: copy the folder again"
        )
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file ({error}): save the SAE again with sae.save") from error


def _built(path: Path, about: dict[str, Any], constraint: Constraint | None) -> SAE:
    """The SAE that sae.json describes, not yet with its tensors."""
    if about["kind"] not in KINDS:
        raise ValueError(
            f"{path} holds an SAE of kind {about['kind']!r}, mpsae {mpsae.__version__} knows {', '.join(KINDS)}: "
            "upgrade mpsae"
        )
    variant = KINDS[about["kind"]]
    settings, known = about["settings"], set(variant.setting_names())
    if settings.keys() != known:
        raise ValueError(
            f"{path / 'sae.json'} must have the settings {sorted(known)} for an SAE of kind {about['kind']!r}; "
            f"found {sorted(settings)}: upgrade mpsae, or save the SAE with the version that made it"
        )
    try:
        return variant.from_settings(settings | ({} if constraint is None else {"constraint": constraint}))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the settings in {path / 'sae.json'} make no SAE: {error}: upgrade mpsae, or save the SAE again"
        ) from error


def _check_norms(sae: SAE, trouble: str, remedy: str) -> None:
    if sae.constraint == "free":
        return
    norms = sae.atoms.detach().to(widest(sae.atoms)).norm(dim=-1)
    excess = (norms - 1).abs() if sae.constraint == "sphere" else norms - 1
    tolerance = NORM_TOLERANCE.get(sae.atoms.dtype, 1e-4)
    if excess.max() > tolerance:
        worst = int(excess.argmax())
        rule = "1" if sae.constraint == "sphere" else "at most 1"
        raise ValueError(
            f"{trouble}: under the constraint {sae.constraint!r} atoms must have norm {rule} (to {tolerance:g}); "
            f"{int((excess > tolerance).sum())} of {sae.d_sae} do not, atom {worst} has {norms[worst]:.6g}: {remedy}"
        )


def _contents(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if not path.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in path.iterdir())
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"found {shown}" if names else "it is empty"

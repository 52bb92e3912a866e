"""Matching pursuit, forward and backward, beside the two formulations that are published: time and peak memory.

    python benchmarks/pursuit.py            # the whole table, a few minutes on 2 cores
    python benchmarks/pursuit.py --quick    # small sizes, seconds

Every variant trains ‖x − x̂‖² on the same data in the same run; results go to benchmarks/results/<machine>.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import re
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch.nn.functional import normalize, one_hot

import mpsae
from mpsae import files

RESULTS = Path(__file__).parent / "results"


def one_hot_loss(x, atoms, k):
    """A dense one-hot and two full products a step, all of it in the graph (overcomplete's formulation)."""
    residual = x
    for _ in range(k):
        correlations = residual @ atoms.T
        picked = one_hot(correlations.argmax(-1), len(atoms)).to(x.dtype) * correlations
        residual = residual - picked @ atoms
    return residual.square().sum(-1).mean()


def gathered_loss(x, atoms, k):
    """A full product a step for the pick, a gathered atom for the update (SAELens' formulation)."""
    residual = x
    for _ in range(k):
        with torch.no_grad():
            index = (residual @ atoms.T).argmax(-1)
        atom = atoms[index]
        residual = residual - (residual * atom).sum(-1, keepdim=True) * atom
    return residual.square().sum(-1).mean()


def our_loss(x, atoms, k):
    """`mpsae.pursue`, its residual used directly."""
    return mpsae.pursue(x, atoms, k).residual.square().sum(-1).mean()


VARIANTS = {"one-hot": one_hot_loss, "gathered": gathered_loss, "mpsae": our_loss}


def problem(inputs, d_in, d_sae):
    """Sparse sums of a hidden dictionary plus noise."""
    generator = torch.Generator().manual_seed(0)
    hidden = normalize(torch.randn(d_sae, d_in, generator=generator), dim=-1)
    picks = torch.randint(d_sae, (inputs, 8), generator=generator)
    x = hidden[picks].sum(1) + 0.05 * torch.randn(inputs, d_in, generator=generator)
    return x, normalize(torch.randn(d_sae, d_in, generator=generator), dim=-1).requires_grad_()


def peak_bytes():
    """The most memory this process has held since `forget_peak`, where the system tells."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) * 1024 if found else None


def forget_peak():
    """Start the peak again from what is held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return peak_bytes()


def measure(name, inputs, d_in, d_sae, k, repeats):
    """One row of the table: seconds are the median, spread the largest less the smallest."""
    x, atoms = problem(inputs, d_in, d_sae)
    seconds, before = [], forget_peak()
    for _ in range(repeats + 1):
        atoms.grad = None
        began = time.perf_counter()
        VARIANTS[name](x, atoms, k).backward()
        seconds.append(time.perf_counter() - began)
    seconds, after = seconds[1:], peak_bytes()
    return {
        "what": name, "B": inputs, "d_in": d_in, "d_sae": d_sae, "k": k, "precision": "exact", "dtype": "float32",
        "device": "cpu", "pass": "train",
        "seconds": statistics.median(seconds), "spread": max(seconds) - min(seconds),
        "peak_bytes": after - before if after and before else None,
    }  # fmt: skip


def main():
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds; writes no file")
    quick = parser.parse_args().quick
    inputs, d_in, d_sae = (256, 64, 512) if quick else (1024, 384, 9600)

    x, atoms = problem(64, 32, 128)
    losses = {name: variant(x, atoms, 8).item() for name, variant in VARIANTS.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4 * max(losses.values()):
        raise SystemExit(f"no timing: the variants do not compute the same loss: {losses}")

    # A process a row: memory that an earlier one has freed but not given back would hide what the next one takes.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        tasks = [(name, inputs, d_in, d_sae, k, 1 if name == "one-hot" else 3) for k in (8, 32) for name in VARIANTS]
        rows = [processes.submit(measure, *task).result() for task in tasks]
    print(f"B {inputs}, d_in {d_in}, d_sae {d_sae}, fp32, {torch.get_num_threads()} threads, forward + backward")
    for row in rows:
        memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:8.0f} MiB"
        print(f"  k {row['k']:3}  {row['what']:9} {row['seconds']:8.3f} s ± {row['spread'] / 2:.3f} {memory}")
    if not quick:
        machine = f"{platform.machine()}-{torch.get_num_threads()}threads"
        about = {"mpsae": mpsae.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
        RESULTS.mkdir(exist_ok=True)
        files.write_json(RESULTS / f"{machine}.json", {"machine": machine, "versions": about, "rows": rows})
        print(json.dumps({"written": f"benchmarks/results/{machine}.json"}))


if __name__ == "__main__":
    main()

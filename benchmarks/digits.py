"""The seven SAEs on scikit-learn's digits: R², ℓ0, silent atoms, seconds; three seeds, one schedule for all.

    python benchmarks/digits.py            # a few minutes on one core; needs the extra `studies`

1,797 images of 64 pixels in [0, 1], centred; 1,600 atoms, k (or wanted ℓ0) 5, 20 epochs of batches of 64, Adam 1e-3.
R² is over the training images, as in the figures of the library overcomplete that stand beside ours: it tells how well
an SAE fits, not how well it generalises. Results go to benchmarks/results/digits.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import mpsae
from mpsae import Steering, files

RESULTS = Path(__file__).parent / "results" / "digits.json"
READ_AT = (2, 5, 10, 20)
"""Sparsities at which every trained SAE is read again."""
EPOCHS, BATCH, D_SAE, K = 20, 64, 1600, 5
OVERCOMPLETE = {"mp": 0.916, "topk": 0.816}
"""R² of overcomplete's classes on the same data and schedule."""

SAES = {
    "mp": lambda d, seed: mpsae.MatchingPursuitSAE(d, D_SAE, K, seed=seed),
    "omp": lambda d, seed: mpsae.OrthogonalPursuitSAE(d, D_SAE, K, seed=seed),
    "relu": lambda d, seed: mpsae.ReLUSAE(d, D_SAE, l0=K, l1=0.4, steering=Steering(rate=0.003), seed=seed),
    "topk": lambda d, seed: mpsae.TopKSAE(d, D_SAE, K, seed=seed),
    "batchtopk": lambda d, seed: mpsae.BatchTopKSAE(d, D_SAE, K, seed=seed),
    "jumprelu": lambda d, seed: mpsae.JumpReLUSAE(d, D_SAE, K, threshold=0.5, bandwidth=0.5, seed=seed),
    "matryoshka": lambda d, seed: mpsae.MatryoshkaSAE(d, D_SAE, K, nested=(100, 200, 400, 800, D_SAE), seed=seed),
}


def images() -> torch.Tensor:
    """The digits [1797, 64], pixels from 0 to 1, centred."""
    from sklearn.datasets import load_digits

    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    return x - x.mean(0)


def train(make, x: torch.Tensor, seed: int) -> tuple[mpsae.SAE, float]:
    """One SAE after 20 epochs, and the seconds that took."""
    sae = make(x.shape[1], seed)
    optimizer = torch.optim.Adam(sae.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            out = sae(x[rows])
            optimizer.zero_grad()
            sum(sae.losses(x[rows], out).values(), torch.zeros(())).backward()
            optimizer.step()
            sae.update_(x[rows], out)
    return sae.eval(), time.perf_counter() - began


@torch.no_grad()
def measure(sae: mpsae.SAE, x: torch.Tensor, k: int | None = None) -> dict[str, float]:
    """R², distinct atoms an image, and atoms that fire for no image; at k read again where it is given."""
    codes = sae.encode(x, k=k)
    left = (x - sae.decode(codes)).square().sum() / (x - x.mean(0)).square().sum()
    return {
        "r2": 1 - left.item(),
        "l0": codes.l0().float().mean().item(),
        "silent": int((codes.counts() == 0).sum()),
    }


def main() -> None:
    """Train, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    x = images()
    rows = []
    print(f"{'':22} {'R²':>24} {'ℓ0':>7} {'silent':>7} {'seconds':>8}   overcomplete")
    for name, make in SAES.items():
        for seed in seeds:
            sae, seconds = train(make, x, seed)
            read = {str(k): measure(sae, x, k)["r2"] for k in READ_AT}
            rows.append({"sae": name, "seed": seed, "seconds": seconds, "r2_at": read} | measure(sae, x))
        _print(name, [row for row in rows if row["sae"] == name])
    for seed in seeds:
        untrained = SAES["mp"](x.shape[1], seed).eval()
        rows.append({"sae": "mp, untrained atoms", "seed": seed, "seconds": 0.0} | measure(untrained, x))
    _print("mp, untrained atoms", rows[-len(seeds) :])
    settings = {"epochs": EPOCHS, "batch": BATCH, "d_sae": D_SAE, "k": K, "lr": 1e-3, "threads": 1}
    versions = {"mpsae": mpsae.__version__, "torch": str(torch.__version__)}
    files.write_json(
        RESULTS, {"settings": settings, "versions": versions, "overcomplete_r2": OVERCOMPLETE, "rows": rows}
    )


def _print(name: str, rows: list[dict]) -> None:
    def mean(key: str) -> float:
        return sum(row[key] for row in rows) / len(rows)

    r2 = " ".join(f"{row['r2']:.3f}" for row in rows)
    peer = f"{OVERCOMPLETE[name]:.3f}" if name in OVERCOMPLETE else ""
    if "r2_at" in rows[0]:
        means = (f"{k}: {sum(row['r2_at'][str(k)] for row in rows) / len(rows):.3f}" for k in READ_AT)
        peer += f"   read at {', '.join(means)}"
    print(f"{name:22} {r2:>24} {mean('l0'):7.2f} {mean('silent'):7.0f} {mean('seconds'):8.1f}   {peer}", flush=True)


if __name__ == "__main__":
    main()

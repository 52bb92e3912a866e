"""What `precision="exact"` promises, judged in float64 on every pick's own residual; every backend must pass."""

import torch
from torch.nn.functional import normalize

EPS32 = torch.finfo(torch.float32).eps


def sizes():
    """name → (d_in, d_sae, k, coherent, rows): where exactness is hard."""
    return {
        "d 768 k 32": (768, 3072, 32, False, None),
        "coherent d 768 k 32": (768, 3072, 32, True, None),
        "d 128 k 64": (128, 1024, 64, False, None),
        "d 64 k 192": (64, 512, 192, False, None),
        "one row": (384, 1536, 32, False, 1),
        "d_sae prime": (96, 1021, 48, False, None),
    }


def problem(d_in, d_sae, coherent, rows, dtype=torch.float32):
    """Sparse sums of a hidden dictionary plus noise, and random or coherent atoms."""
    generator = torch.Generator().manual_seed(0)
    hidden = normalize(torch.randn(d_sae, d_in, generator=generator), dim=-1)
    which = torch.randint(d_sae, (rows, 8), generator=generator)
    x = (hidden[which] * (1 + torch.rand(rows, 8, 1, generator=generator))).sum(1)
    x = x + 0.05 * torch.randn(rows, d_in, generator=generator)
    atoms = normalize(torch.randn(d_sae, d_in, generator=generator), dim=-1)
    if coherent:  # 96 clusters, cosines of about .9 within each
        atoms = normalize(atoms[torch.arange(d_sae) % 96] + 0.3 * atoms, dim=-1)
    return x.to(dtype), atoms.to(dtype)


def violations(x, atoms, codes, select="positive"):
    """(picks, how many are not within the promise, how many rows end while a positive pick was left)."""
    x, atoms = x.double(), atoms.double()
    values, indices, used = codes.values.double(), codes.indices.long(), codes.used
    slack = 16 * EPS32 * x.norm(dim=-1)
    residual, picks, bad, early = x.clone(), 0, 0, 0
    for t in range(values.shape[-1]):
        correlations = residual @ atoms.T
        sizes = correlations.abs() if select == "absolute" else correlations
        best = sizes.max(-1).values
        own = correlations.gather(-1, indices[:, t, None])[:, 0]
        taken = used[:, t]
        size = sizes.gather(-1, indices[:, t, None])[:, 0]
        worse = (size < best * (1 - 1e-5) - slack) | ((values[:, t] - own).abs() > best * 1e-5 + slack)
        picks += int(taken.sum())
        bad += int((worse & taken).sum())
        early += int((~taken & (best > 2 * slack)).sum())
        residual -= torch.where(taken, values[:, t], 0.0)[:, None] * atoms[indices[:, t]]
    return picks, bad, early

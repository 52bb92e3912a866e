"""Inputs and dictionaries of many kinds, easy and adversarial, for the laws to be tried on."""

import torch
from hypothesis import strategies as st
from torch.nn.functional import normalize


def dictionary(kind, d_sae, d_in, generator, dtype=torch.float64):
    rows = normalize(torch.randn(d_sae, d_in, generator=generator, dtype=dtype), dim=-1)
    if kind == "random":
        return rows
    if kind == "coherent":  # all within a narrow cone
        return normalize(rows[:1] + 0.1 * rows, dim=-1)
    if kind == "duplicates":
        return rows[torch.arange(d_sae) % max(d_sae // 3, 1)].clone()
    if kind == "orthonormal":
        size = min(d_sae, d_in)
        return torch.linalg.qr(torch.randn(d_in, size, generator=generator, dtype=dtype)).Q.T.contiguous()
    if kind == "scaled":  # norms from .1 to 1.3
        return rows * torch.linspace(0.1, 1.3, d_sae, dtype=dtype)[:, None]
    raise AssertionError(kind)


UNIT = ("random", "coherent", "duplicates", "orthonormal")
KINDS = (*UNIT, "scaled")


@st.composite
def problems(draw, kinds=KINDS, selects=("positive", "signed", "absolute")):
    """x [B, d_in], atoms, steps, select; one of the inputs is zero, steps often exceed d_in."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    d_in, d_sae = draw(st.integers(1, 9)), draw(st.integers(1, 30))
    atoms = dictionary(draw(st.sampled_from(kinds)), d_sae, d_in, generator)
    x = torch.randn(draw(st.integers(1, 5)), d_in, generator=generator, dtype=torch.float64)
    x[-1] *= draw(st.sampled_from([0.0, 1.0, 1e-30, 1e30]))
    return x, atoms, draw(st.integers(1, 14)), draw(st.sampled_from(selects))

"""What people write first, as the design has it, with the sizes made small."""

import torch

import mpsae


def test_an_sae_is_made_read_and_read_at_another_sparsity():
    x = torch.randn(16, 24)
    sae = mpsae.MatchingPursuitSAE(d_in=24, d_sae=96, stop=8)
    codes = sae.encode(x)  # 8 picks an input, in order
    assert codes.values.shape == codes.indices.shape == (16, 8)
    assert codes.dense().shape == codes.sparse().shape == (16, 96)
    short = sae.at(k=3)
    assert short.encode(x).values.shape == (16, 3)
    adaptive = sae.at(stop=mpsae.Stop(64, relative=0.1))
    assert len(adaptive.encode(x).lengths.unique()) > 1


def test_your_own_loop():
    sae = mpsae.MatchingPursuitSAE(d_in=24, d_sae=96, stop=8)
    opt = torch.optim.Adam(sae.parameters())
    loader = [torch.randn(16, 24) for _ in range(3)]
    for x in loader:
        out = sae(x); opt.zero_grad(); sum(sae.losses(x, out).values()).backward(); opt.step(); sae.update_(x, out)  # noqa: E702  # fmt: skip
    assert sae.updates == 3


def test_an_sae_is_saved_and_loaded(tmp_path):
    mpsae.MatchingPursuitSAE(d_in=24, d_sae=96, stop=8).save(tmp_path / "a")
    assert mpsae.load(tmp_path / "a").stop == mpsae.Stop(8)

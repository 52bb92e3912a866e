import pytest
import torch

import mpsae
from mpsae import MatchingPursuitSAE, Runs, Stop, pursue

from .laws import D_IN, D_SAE, K, Laws


class TestMatchingPursuit(Laws):
    def make(self, seed=0, **options):
        return MatchingPursuitSAE(D_IN, D_SAE, options.pop("stop", K), seed=seed, **options)


class TestFreeWithoutBias(Laws):
    def make(self, seed=0, **options):
        return MatchingPursuitSAE(
            D_IN, D_SAE, Stop(K, residual=0.01, repeat=True), constraint="free", bias=False, seed=seed, **options
        )


class TestAbsoluteInTheBall(Laws):
    def make(self, seed=0, **options):
        return MatchingPursuitSAE(D_IN, D_SAE, K, constraint="ball", select="absolute", seed=seed, **options)


def small(**options):
    return MatchingPursuitSAE(D_IN, D_SAE, options.pop("stop", K), **options)


def test_encoding_is_the_pursuit_of_the_centred_input():
    sae, x = small(), torch.randn(20, D_IN)
    with torch.no_grad():
        sae.bias.copy_(torch.randn(D_IN))
    found = pursue(x - sae.bias, sae.atoms, K)
    codes = sae.encode(x)
    assert torch.equal(codes.values, found.codes.values)
    assert torch.equal(codes.indices, found.codes.indices)
    assert codes.order == "pursuit"
    assert torch.equal(sae(x).residual, found.residual)


def test_k_at_inference_is_that_many_picks_of_the_same_pursuit():
    sae, x = small(), torch.randn(20, D_IN)
    longer = sae.encode(x, k=9)
    assert torch.equal(longer.prefix(K).values, sae.encode(x).values)
    assert torch.equal(longer.prefix(2).values, sae.at(k=2).encode(x).values)
    assert sae.at(k=5).stop == Stop(5)


def test_k_keeps_the_other_rules_and_stop_replaces_them():
    sae = small(stop=Stop(9, relative=0.5, repeat=True))
    assert sae.at(k=4).stop == Stop(4, relative=0.5, repeat=True)
    assert sae.at(stop=4).stop == Stop(4)
    assert sae.at(stop=Stop(6, cosine=0.1)).stop == Stop(6, cosine=0.1)
    assert sae.stop == Stop(9, relative=0.5, repeat=True)


def test_as_many_steps_as_each_input_needs():
    sae, x = small(), torch.randn(200, D_IN)
    out = sae.at(stop=Stop(200, relative=0.3))(x)
    share = out.residual.norm(dim=-1) / x.norm(dim=-1)
    assert (share < 0.3).all()
    assert len(out.codes.lengths.unique()) > 2
    before_last = sae.decode(
        mpsae.Codes(
            out.codes.values * (torch.arange(200) < out.codes.lengths[:, None] - 1),
            out.codes.indices, out.codes.lengths, D_SAE, "pursuit",
        )
    )  # fmt: skip
    assert ((x - before_last).norm(dim=-1) >= 0.3 * x.norm(dim=-1) * (1 - 1e-5)).all()


def test_the_error_falls_with_every_k():
    sae, x = small(), torch.randn(200, D_IN)
    errors = torch.stack([sae.at(k=k)(x).residual.norm(dim=-1) for k in range(1, 12)])
    assert (errors.diff(dim=0) <= 1e-6).all()


@pytest.mark.parametrize(("constraint", "norms"), [("sphere", (1.0, 1.0)), ("ball", (0.5, 1.0)), ("free", (0.5, 3.0))])
def test_the_constraint_holds_after_every_update(constraint, norms):
    sae, x = small(constraint=constraint), torch.randn(5, D_IN)
    with torch.no_grad():
        sae.atoms[0] *= 0.5
        sae.atoms[1] *= 3.0
    sae.update_(x, sae(x))
    torch.testing.assert_close(sae.atoms[:2].detach().norm(dim=-1), torch.tensor(norms))


def test_a_bound_written_in_place_is_the_bound_that_holds():
    sae, x = small(stop=9), torch.randn(20, D_IN)
    with torch.no_grad():
        sae.bounds.copy_(torch.tensor(Stop(9, relative=0.6).limits, dtype=torch.float64))
    assert sae.stop == Stop(9, relative=0.6)
    assert torch.equal(sae.encode(x).lengths, small(stop=Stop(9, relative=0.6)).encode(x).lengths)


def test_runs_may_differ_in_their_bounds_but_not_in_their_steps():
    stops = [Stop(9, relative=share) for share in (0.1, 0.3, 0.5)]
    runs, x = Runs([small(stop=stop) for stop in stops]), torch.randn(20, D_IN)
    assert [sae.stop for sae in runs] == stops
    codes = runs.encode(x)
    for i, stop in enumerate(stops):
        assert torch.equal(codes[i].lengths, small(stop=stop).encode(x).lengths)
    assert [sae.stop for sae in runs.at(k=4)] == [Stop(4, relative=stop.relative) for stop in stops]
    assert [sae.stop for sae in runs.at(stop=Stop(5, cosine=0.2))] == [Stop(5, cosine=0.2)] * 3
    with pytest.raises(ValueError, match="numbers 0 and 1 differ in k: 9 and 8"):
        Runs([small(stop=9), small(stop=8)])


def test_the_bounds_keep_their_digits_wherever_the_sae_goes():
    sae = small(stop=Stop(3, relative=0.1))
    assert sae.bfloat16().stop.relative == 0.1
    assert sae.float().double().stop.relative == 0.1
    assert Runs([sae]).half()[0].stop.relative == 0.1


def test_what_makes_no_sense_is_refused():
    for options, words in (
        ({"d_in": 0}, "d_in must be"),
        ({"d_sae": 2.5}, "d_sae must be"),
        ({"stop": 0}, "≥ 1"),
        ({"constraint": "cube"}, "'sphere', 'ball', 'free'; got 'cube'"),
        ({"select": "most"}, "'positive', 'signed', 'absolute'; got 'most'"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(ValueError, match=words):
            MatchingPursuitSAE(**({"d_in": 4, "d_sae": 8, "stop": 2} | options))


def test_it_says_what_it_is():
    expected = "MatchingPursuitSAE(d_in=10, d_sae=24, stop=Stop(3), constraint='sphere')"
    assert repr(small()) == expected

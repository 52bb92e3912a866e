"""Scaled inputs: what is read, what is written, what is folded into files and what is refused."""

import json

import pytest
import torch

import mpsae
from mpsae import (
    BatchTopKSAE,
    JumpReLUSAE,
    MatchingPursuitSAE,
    MatryoshkaSAE,
    OrthogonalPursuitSAE,
    ReLUSAE,
    Runs,
    Stop,
    TopKSAE,
)  # fmt: skip

from .laws import D_IN, D_SAE, Laws

OFFSET = torch.linspace(-3, 5, D_IN)
SPREAD = torch.linspace(0.5, 4, D_IN)

VARIANTS = {
    "mp": lambda **o: MatchingPursuitSAE(D_IN, D_SAE, Stop(4, residual=0.7, coefficient=0.2, relative=0.1), **o),
    "omp": lambda **o: OrthogonalPursuitSAE(D_IN, D_SAE, 3, **o),
    "relu": lambda **o: ReLUSAE(D_IN, D_SAE, l1=0.1, **o),
    "relu not centred": lambda **o: ReLUSAE(D_IN, D_SAE, l1=0.1, centred=False, **o),
    "topk": lambda **o: TopKSAE(D_IN, D_SAE, 3, **o),
    "batchtopk": lambda **o: BatchTopKSAE(D_IN, D_SAE, 3, **o),
    "jumprelu": lambda **o: JumpReLUSAE(D_IN, D_SAE, 3, threshold=0.4, **o),
    "matryoshka": lambda **o: MatryoshkaSAE(D_IN, D_SAE, 3, nested=3, sort_every=2, **o),
}


class TestScalarScaling(Laws):
    def make(self, seed=0, **options):
        sae = MatchingPursuitSAE(D_IN, D_SAE, 3, seed=seed, scaling="scalar", **options)
        return sae.fit_scaling_(torch.randn(500, D_IN) * 3 + OFFSET)

    def test_encoding_is_of_the_scaled_input(self):
        sae, x = self.make(), self.inputs()
        expected = MatchingPursuitSAE(D_IN, D_SAE, 3).encode((x - sae.shift) * sae.scale)
        assert torch.equal(sae.encode(x).values, expected.values)

    # Scaling is folded on saving, and the constraint of runs compares what data gave; both have tests of their own.
    test_a_saved_sae_is_loaded_bit_for_bit = None
    test_the_reconstruction_loss_sums_coordinates_and_averages_inputs = None
    test_decoding_codes_is_decoding_the_dense = None
    test_decoding_sends_gradients_to_atoms_values_and_bias = None
    test_data_can_be_the_start = None
    test_an_sae_of_half_precision_computes_in_float32 = None
    test_encode_refuses_what_is_not_finite_and_says_where = None


def fitted(make, scaling, updates=4):
    """An SAE that has seen some data, all of whose parameters differ from their start."""
    sae = make(scaling=scaling)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(2000, D_IN, generator=generator) * SPREAD + OFFSET
    if scaling in ("scalar", "standard"):
        sae.fit_scaling_(data)
    optimizer = torch.optim.Adam(sae.parameters(), lr=0.01)
    for batch in data[: 100 * updates].split(100):
        out = sae(batch)
        optimizer.zero_grad()
        sum(sae.losses(batch, out).values()).backward()
        optimizer.step()
        sae.update_(batch, out)
    return sae.eval(), data


def test_inputs_are_brought_to_the_mean_norm_they_should_have():
    sae, data = fitted(VARIANTS["mp"], "scalar")
    read = (data - sae.shift) * sae.scale
    torch.testing.assert_close(read.mean(0), torch.zeros(D_IN), atol=1e-4, rtol=0)
    assert read.norm(dim=-1).mean().item() == pytest.approx(D_IN**0.5, rel=1e-4)
    sae, data = fitted(VARIANTS["mp"], "standard")
    read = (data - sae.shift) * sae.scale
    deviations = read.std(0, correction=0)
    torch.testing.assert_close(deviations, deviations.mean().expand(D_IN), atol=1e-4, rtol=0)
    assert read.norm(dim=-1).mean().item() == pytest.approx(D_IN**0.5, rel=1e-4)


def test_the_running_mean_of_norms_starts_from_0_and_has_the_batch_in_it():
    sae = TopKSAE(D_IN, D_SAE, 3, scaling="norm", bias=False)
    mean = 0.0
    for seed in range(3):
        x = torch.randn(40, D_IN, generator=torch.Generator().manual_seed(seed)) * 7
        mean = 0.99 * mean + 0.01 * x.norm(dim=-1).mean().item()
        out = sae(x)
        torch.testing.assert_close(out.pre, (x * D_IN**0.5 / mean) @ sae.encoder.T)
        scaled = out.residual * D_IN**0.5 / mean
        torch.testing.assert_close(sae.losses(x, out)["reconstruction"], scaled.square().sum(-1).mean())
        sae.update_(x, out)
        assert sae.mean_norm.item() == pytest.approx(mean, rel=1e-5)
    torch.testing.assert_close(sae.eval()(x).pre, (x * D_IN**0.5 / mean) @ sae.encoder.T)


@pytest.mark.parametrize("scaling", ["norm", "scalar", "standard"])
@pytest.mark.parametrize("name", VARIANTS)
def test_residual_and_reconstruction_are_in_the_units_of_x(name, scaling):
    sae, data = fitted(VARIANTS[name], scaling)
    x = data[:50]
    out = sae(x)
    torch.testing.assert_close(out.x_hat + out.residual, x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sae.decode(out.codes), out.x_hat, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sae.decode(sae.encode(x)), out.x_hat, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", ["norm", "scalar"])
@pytest.mark.parametrize("name", VARIANTS)
def test_folding_changes_neither_picks_nor_reconstructions(name, scaling):
    sae, data = fitted(VARIANTS[name], scaling)
    sae = sae.double()
    x = data[:50].double()
    folded = sae.folded()
    scale = sae.scale if scaling == "scalar" else D_IN**0.5 / sae.mean_norm
    codes, plain = sae.encode(x), folded.encode(x)
    assert folded.scaling == "none"
    assert torch.equal(codes.indices, plain.indices)
    torch.testing.assert_close(codes.values / scale, plain.values)
    torch.testing.assert_close(folded(x).x_hat, sae(x).x_hat)
    assert sae.scaling == scaling  # the SAE itself is as it was
    if scaling == "scalar":
        assert folded.removed_mean == pytest.approx(sae.shift.tolist())


@pytest.mark.parametrize("name", VARIANTS)
def test_files_hold_the_folded_sae_and_the_mean_that_was_removed(name, tmp_path):
    sae, data = fitted(VARIANTS[name], "scalar")
    sae.save(tmp_path)
    loaded = mpsae.load(tmp_path)
    assert loaded.scaling == "none"
    assert loaded.removed_mean == pytest.approx(sae.shift.tolist())
    assert json.loads((tmp_path / "sae.json").read_text())["removed_mean"] == list(loaded.removed_mean)
    x = data[:50]
    torch.testing.assert_close(loaded(x).x_hat, sae(x).x_hat, rtol=1e-4, atol=1e-3)
    loaded.save(tmp_path)
    assert mpsae.load(tmp_path).removed_mean == loaded.removed_mean


def test_a_scale_for_each_coordinate_stays_a_buffer_of_the_sae(tmp_path):
    sae, data = fitted(VARIANTS["mp"], "standard")
    assert sae.folded() is sae
    sae.save(tmp_path)
    loaded = mpsae.load(tmp_path)
    assert loaded.scaling == "standard"
    assert torch.equal(loaded.scale, sae.scale)
    assert torch.equal(loaded(data[:20]).x_hat, sae(data[:20]).x_hat)


def test_a_state_dict_brings_the_scale_and_that_it_was_taken_from_data():
    sae, data = fitted(VARIANTS["topk"], "scalar")
    other = VARIANTS["topk"](scaling="scalar").eval()
    other.load_state_dict(sae.state_dict())
    assert torch.equal(other(data[:9]).x_hat, sae(data[:9]).x_hat)


def test_what_is_averaged_or_steered_is_not_rounded_away_by_half_precision():
    sae = MatryoshkaSAE(D_IN, D_SAE, 3, scaling="norm", activation="relu", nested=3, sort_every=1).to(torch.bfloat16)
    for name in ("l1_weight", "threshold", "energy", "mean_norm"):
        assert sae.get_buffer(name).dtype == torch.float32
    assert Runs([sae]).to(torch.float16).l1_weight.dtype == torch.float32


def test_an_empty_batch_changes_no_scale():
    for make in (VARIANTS["batchtopk"], VARIANTS["matryoshka"], VARIANTS["relu"]):
        sae, _ = fitted(make, "norm")
        before, x = sae.mean_norm.clone(), torch.randn(0, D_IN)
        sae.train().update_(x, sae(x))
        assert torch.equal(sae.mean_norm, before)


def test_runs_have_scales_of_their_own():
    saes = [fitted(VARIANTS["mp"], "scalar")[0] for _ in range(2)]
    with torch.no_grad():
        saes[1].scale *= 2
    runs, x = Runs(saes), torch.randn(10, D_IN)
    for i, sae in enumerate(saes):
        torch.testing.assert_close(runs(x).x_hat[i], sae(x).x_hat)
        torch.testing.assert_close(runs.encode(x)[i].values, sae.encode(x).values)


def test_what_was_not_taken_from_data_is_refused(tmp_path):
    sae, x = MatchingPursuitSAE(D_IN, D_SAE, 3, scaling="scalar"), torch.randn(20, D_IN)
    standard = TopKSAE(D_IN, D_SAE, 3, scaling="standard")
    for use in (lambda: sae(x), lambda: sae.encode(x), lambda: sae.save(tmp_path), lambda: standard.save(tmp_path)):
        with pytest.raises(ValueError, match=r"call sae\.fit_scaling_\(x\) first"):
            use()
    with pytest.raises(ValueError, match="takes nothing from data"):
        MatchingPursuitSAE(D_IN, D_SAE, 3).fit_scaling_(x)
    with pytest.raises(ValueError, match="all inputs are the same"):
        sae.fit_scaling_(torch.ones(5, D_IN))
    with pytest.raises(ValueError, match="from many inputs; got 0"):
        sae.fit_scaling_(x[:0])
    x[:, 3] = 2.0
    with pytest.raises(ValueError, match="coordinate 3 of x never varies"):
        MatchingPursuitSAE(D_IN, D_SAE, 3, scaling="standard").fit_scaling_(x)
    with pytest.raises(ValueError, match="scaling must be one of"):
        MatchingPursuitSAE(D_IN, D_SAE, 3, scaling="log")

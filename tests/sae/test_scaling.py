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


class ScaledLaws(Laws):
    scaling = "scalar"

    def make(self, seed=0, **options):
        sae = MatchingPursuitSAE(D_IN, D_SAE, 3, seed=seed, scaling=self.scaling, **options)
        if self.scaling == "norm":
            sae.mean_norm.fill_(7.0)
            return sae
        return sae.fit_scaling_(torch.randn(500, D_IN, generator=torch.Generator().manual_seed(9)) * 3 + OFFSET)

    # What a scaling changes on purpose has tests of its own below: files hold it folded, errors are of scaled inputs,
    # codes are not x's own.
    test_a_saved_sae_is_loaded_bit_for_bit = None
    test_the_reconstruction_loss_sums_coordinates_and_averages_inputs = None
    test_decoding_codes_is_decoding_the_dense = None
    test_decoding_sends_gradients_to_atoms_values_and_bias = None
    test_data_can_be_the_start = None
    test_updates_lower_the_error = None


class TestScalar(ScaledLaws):
    def test_encoding_is_of_the_scaled_input(self):
        sae, x = self.make(), self.inputs()
        expected = MatchingPursuitSAE(D_IN, D_SAE, 3).encode((x - sae.shift) * sae.scale)
        assert torch.equal(sae.encode(x).values, expected.values)


class TestStandard(ScaledLaws):
    scaling = "standard"


class TestNorm(ScaledLaws):
    scaling = "norm"


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


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_of_the_folded_sae_are_the_same_in_units_of_x(name):
    sae, data = fitted(VARIANTS[name], "scalar")
    x, folded, scale = data[:50], sae.folded(), sae.scale
    mine, other = sae.losses(x, sae(x)), folded.losses(x, folded(x))
    units = {"reconstruction": scale**2, "l1": scale**2, "l0": torch.tensor(1.0)}
    for term, value in mine.items():
        torch.testing.assert_close(other[term] * units[term], value, rtol=1e-3, atol=1e-4)


def test_the_auxiliary_loss_is_of_the_scaled_residual():
    sae, data = fitted(
        lambda **o: TopKSAE(D_IN, D_SAE, 3, auxiliary=mpsae.Auxiliary(weight=1.0, k=1, after=5), **o), "scalar"
    )
    with torch.no_grad():
        sae.silent[2] = 9
    x = data[:20]
    out = sae(x)
    ours = sae.losses(x, out)["auxiliary"]
    written = out.pre[:, 2:3] * sae.atoms[2]
    torch.testing.assert_close(ours, (out.residual * sae.scale - written).square().sum(-1).mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scaling", ["norm", "scalar"])
def test_a_start_from_data_is_in_the_units_that_are_read(scaling):
    data = torch.randn(3000, D_IN) + 4
    sae = TopKSAE(D_IN, D_SAE, 3, scaling=scaling)
    if scaling == "scalar":
        sae.fit_scaling_(data)
    sae.init_from_data_(data)
    expected = 0.0 if scaling == "scalar" else data.mean(0) * D_IN**0.5 / data.norm(dim=-1).mean()
    torch.testing.assert_close(sae.bias.detach(), torch.zeros(D_IN) + expected, rtol=1e-3, atol=1e-3)


def test_runs_of_folded_saes_keep_the_mean_that_each_removed():
    saes = [fitted(VARIANTS["mp"], "scalar")[0].folded() for _ in range(2)]
    saes[1].removed_mean = tuple(2 * number for number in saes[1].removed_mean)
    assert [sae.removed_mean for sae in Runs(saes)] == [sae.removed_mean for sae in saes]


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

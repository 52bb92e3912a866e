import pytest
import torch

from mpsae import MatryoshkaSAE, Runs, Steering
from mpsae.sae.matryoshka import drawn_sizes

from . import plain
from .laws import D_IN, D_SAE, Laws

SIZES = (4, 10, D_SAE)


class MatryoshkaLaws(Laws):
    def test_the_reconstruction_loss_sums_coordinates_and_averages_inputs(self):
        sae, x = self.make(), self.inputs()
        out = sae(x)
        errors = [(x - out.acts[:, m] @ sae.atoms[m] - sae.bias).square().sum() / len(x) for m in sae._prefixes()]
        errors = torch.stack(errors)
        expected = errors.sum() if sae.reduce == "sum" else errors.mean()
        torch.testing.assert_close(sae.losses(x, out)["reconstruction"], expected)


class TestMatryoshkaOnBatchTopK(MatryoshkaLaws):
    def make(self, seed=0, **options):
        return MatryoshkaSAE(D_IN, D_SAE, 3, nested=SIZES, seed=seed, **options)


class TestMatryoshkaOnReLUAsInTheSyntheticStudy(MatryoshkaLaws):
    def make(self, seed=0, **options):
        return MatryoshkaSAE(
            D_IN, D_SAE, 3, nested=4, activation="relu", reduce="mean", sort_every=2, seed=seed, **options
        )  # fmt: skip


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("activation", ["batchtopk", "relu"])
def test_values_losses_and_gradients_are_those_of_the_formulas(activation, reduce):
    l1 = 0.2 if activation == "relu" else None
    sae = MatryoshkaSAE(9, 20, 3, nested=(3, 8, 20), activation=activation, reduce=reduce, l1=0.2)
    plain.assert_equal(sae, lambda t, x: plain.matryoshka(t, x, 3, (3, 8, 20), reduce, l1))


def test_ranks_decide_which_atoms_come_first():
    plain_order = MatryoshkaSAE(D_IN, D_SAE, 3, nested=SIZES)
    sorted_ = MatryoshkaSAE(D_IN, D_SAE, 3, nested=SIZES, sort_every=1)
    order = torch.randperm(D_SAE)
    with torch.no_grad():
        for name in ("atoms", "encoder"):
            getattr(sorted_, name)[order] = getattr(plain_order, name)
        sorted_.rank[order] = torch.arange(D_SAE)
    x = torch.randn(30, D_IN)
    one, other = (sae.losses(x, sae(x))["reconstruction"] for sae in (plain_order, sorted_))
    torch.testing.assert_close(one, other)


def test_atoms_are_ranked_by_the_energy_of_what_they_write_and_no_row_moves():
    sae, x = MatryoshkaSAE(D_IN, D_SAE, 3, nested=3, sort_every=2, constraint="free"), torch.randn(200, D_IN)
    rows = sae.atoms.detach().clone()
    out = sae(x)
    sae.update_(x, out)
    assert torch.equal(sae.rank, torch.arange(D_SAE))
    sae.update_(x, sae(x))
    energy = (out.acts.square().mean(0) * rows.square().sum(-1)).detach()
    assert torch.equal(sae.rank, energy.argsort(descending=True, stable=True).argsort())
    assert torch.equal(sae.atoms, rows)


def test_energy_is_a_running_mean_of_what_atoms_write_whatever_their_norms():
    sae = MatryoshkaSAE(D_IN, D_SAE, 3, nested=3, sort_every=9, decay=0.9)
    with torch.no_grad():
        sae.atoms.mul_(torch.linspace(0.5, 2, D_SAE)[:, None])
    expected = torch.zeros(D_SAE)
    for seed in range(3):
        x = torch.randn(60, D_IN, generator=torch.Generator().manual_seed(seed))
        out = sae(x)
        expected = 0.9 * expected + 0.1 * (out.acts[:, :, None] * sae.atoms).square().sum(-1).mean(0)
        sae.update_(x, out)
        torch.testing.assert_close(sae.energy, expected.detach())


def test_the_penalty_ramps_up_and_is_steered():
    steering = Steering(rate=0.5, ramp=2)
    sae = MatryoshkaSAE(D_IN, D_SAE, 3, nested=SIZES, activation="relu", l1=0.1, steering=steering)
    x, weights = torch.randn(60, D_IN), []
    unit = sum(sae(x).acts[:, m].sum() for m in sae._prefixes()).item() / 60
    for _ in range(4):
        weights.append(sae.losses(x, sae(x))["l1"].item() / unit)
        sae.update_(x, sae(x))
    assert weights == pytest.approx([0.05, 0.1, 0.1, 0.15], rel=1e-4)


def test_sizes_are_different_rise_and_end_with_the_whole():
    state = torch.tensor(3)
    seen = torch.zeros(21)
    for i in range(4000):
        sizes = [int(size) for size in drawn_sizes(state + i * 1000, 5, 20)]
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == 20
        assert sizes[0] >= 1
        for size in sizes[:-1]:
            seen[size] += 1
    # One size alone follows the Pareto law of power ½: P(n) ∝ n^−½ − (n + 1)^−½.
    first = torch.zeros(20)
    for i in range(20_000):
        first[int(drawn_sizes(state + i * 777, 2, 20)[0])] += 1
    n = torch.arange(1, 20)
    law = n**-0.5 - (n + 1.0) ** -0.5
    torch.testing.assert_close(first[1:] / 20_000, law / law.sum(), atol=0.012, rtol=0)
    assert (seen[1:20] > 0).all()


def test_every_batch_draws_anew_and_a_run_draws_what_it_would_draw_alone():
    singles = [MatryoshkaSAE(D_IN, D_SAE, 3, nested=4, seed=seed) for seed in range(3)]
    runs, x = Runs(singles), torch.randn(20, D_IN)
    drawn = set()
    for _ in range(4):
        for i, sae in enumerate(singles):
            drawn.add(tuple(int(prefix.sum()) for prefix in sae._prefixes()))
            assert torch.equal(runs[i].drawn, sae.drawn)
            torch.testing.assert_close(
                runs.losses(x, runs(x))["reconstruction"][i], sae.losses(x, sae(x))["reconstruction"]
            )
        out = runs(x)
        runs.update_(x, out)
        for sae in singles:
            sae.update_(x, sae(x))
    assert len(drawn) > 8


def test_k_at_inference_reads_the_largest_of_what_exceeds_the_threshold():
    sae, x = MatryoshkaSAE(D_IN, D_SAE, 3, nested=SIZES), torch.randn(20, D_IN)
    with torch.no_grad():
        sae.threshold.fill_(0.5)
    assert torch.equal(sae.at(k=2).encode(x).dense(), sae.encode(x).top(2).dense())
    assert (sae.encode(x).values[sae.encode(x).used] > 0.5).all()
    with pytest.raises(ValueError, match="makes no pursuit"):
        sae.at(stop=2)


@pytest.mark.parametrize("nested", [(4, 4, D_SAE), (10, 4, D_SAE), (4, 10), (), 0, D_SAE + 1, (0, D_SAE), 1.5, None])
def test_sizes_that_make_no_sense_are_refused(nested):
    with pytest.raises(ValueError, match="nested"):
        MatryoshkaSAE(D_IN, D_SAE, 3, nested=nested)

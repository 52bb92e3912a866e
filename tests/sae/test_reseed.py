import pytest
import torch
from torch.nn.functional import normalize

from mpsae import JumpReLUSAE, MatchingPursuitSAE, MatryoshkaSAE, Reseed, Runs, TopKSAE, clear_moments_
from mpsae.sae import reseed
from mpsae.sae.reseed import choose, worst_directions

from .laws import D_IN, D_SAE, Laws


class TestReseeded(Laws):
    def make(self, seed=0, **options):
        return TopKSAE(D_IN, D_SAE, 3, seed=seed, reseed=Reseed(every=3, bound=0.5), **options)

    # An atom made anew starts to count again: test_atoms_start_again_at_what_is_written_worst.
    test_silent_counts_the_inputs_since_an_atom_fired = None


def test_the_unused_and_the_less_used_of_two_alike_are_chosen():
    a, b, c, d = torch.eye(4)
    atoms = torch.stack([a, normalize(a + 0.1 * b, dim=0), c, d, -c, normalize(d + 0.3 * a, dim=0)])
    fired = torch.tensor([5, 9, 1, 4, 1, 4])
    # 0 is like 1 and fires less; 5 is like 3, fires as often and comes later; 4 is the opposite of 2.
    assert choose(atoms, fired, 0.9).tolist() == [True, False, False, False, False, True]
    assert choose(atoms, fired * torch.tensor([1, 1, 0, 1, 1, 1]), 2.0).tolist() == [False, False, True] + [False] * 3
    assert choose(3 * atoms, fired, 0.9).tolist() == choose(atoms, fired, 0.9).tolist()


def test_opposites_are_alike_where_the_sign_of_a_coefficient_is_free():
    atoms, fired = torch.stack([torch.eye(3)[0], -torch.eye(3)[0], torch.eye(3)[1]]), torch.tensor([2, 5, 1])
    assert choose(atoms, fired, 0.9).tolist() == [False] * 3
    assert choose(atoms, fired, 0.9, ignores_sign=True).tolist() == [True, False, False]
    sae, x = MatchingPursuitSAE(3, 3, 1, select="absolute", reseed=Reseed(every=1, bound=0.9)), torch.randn(50, 3)
    with torch.no_grad():
        sae.atoms.copy_(atoms)
    assert sae.update_(x, sae(x))[:2].any()


@pytest.mark.parametrize("name", ["jumprelu", "matryoshka", "scaled"])
def test_everything_of_an_atom_starts_again(name):
    x = torch.randn(200, D_IN) * 4 + 3
    shared = {"reseed": Reseed(every=1, bound=2.0), "scaling": "standard"}
    if name == "jumprelu":
        sae = JumpReLUSAE(D_IN, D_SAE, 3, threshold=0.3, **shared)
    elif name == "matryoshka":
        sae = MatryoshkaSAE(D_IN, D_SAE, 3, sort_every=50, **shared)
    else:
        sae = TopKSAE(D_IN, D_SAE, 3, **shared)
    sae.fit_scaling_(x)
    with torch.no_grad():
        sae.bias.copy_(torch.randn(D_IN))
        sae.encoder_bias[7] = -500.0
        if name == "jumprelu":
            sae.log_threshold.fill_(1.0)
        if name == "matryoshka":
            sae.energy.fill_(9.0)
    out = sae(x)
    mask = sae.update_(x, out)
    assert mask[7]
    scaled = (out.residual * sae.scale).square().sum(-1)
    worst = scaled.argsort(descending=True)[: int(mask.sum())]
    expected = normalize((x[worst] - sae.shift) * sae.scale - sae.bias, dim=-1)
    torch.testing.assert_close(sae.atoms.detach()[mask], expected.detach(), rtol=1e-4, atol=1e-5)
    if name == "jumprelu":
        torch.testing.assert_close(sae.log_threshold.detach()[mask].exp(), torch.full((int(mask.sum()),), 0.3))
    if name == "matryoshka":
        assert not sae.energy[mask].any()
        assert (sae.energy[~mask] > 0).all()


def test_tiles_do_not_matter(monkeypatch):
    atoms, fired = torch.randn(50, 3), torch.randint(0, 5, (50,))
    whole = choose(atoms, fired, 0.8)
    monkeypatch.setattr(reseed, "ROWS", 7)
    assert torch.equal(choose(atoms, fired, 0.8), whole)
    assert 0 < whole.sum() < 50


def test_each_gets_an_input_of_its_own_the_worst_first():
    x, errors = torch.randn(4, 3), torch.tensor([1.0, 5.0, torch.nan, 3.0])
    residual = errors[:, None] * torch.tensor([[1.0, 0.0, 0.0]])
    mask = torch.tensor([False, True, False, True, True, True])
    directions, renewed = worst_directions(x, residual, mask)
    assert renewed.tolist() == [False, True, False, True, True, False]  # three good inputs, four atoms
    torch.testing.assert_close(directions[[1, 3, 4]], normalize(x[[1, 3, 0]], dim=-1))
    assert directions.isfinite().all()


@pytest.mark.parametrize("kind", ["mp", "topk"])
def test_atoms_start_again_at_what_is_written_worst(kind):
    options = {"reseed": Reseed(every=2, bound=0.95, until=4)}
    sae = MatchingPursuitSAE(D_IN, D_SAE, 2, **options) if kind == "mp" else TopKSAE(D_IN, D_SAE, 2, **options)
    with torch.no_grad():
        sae.atoms[5] = sae.atoms[3]
        if kind == "topk":
            sae.encoder[5] = sae.encoder[3]
            sae.encoder_bias[7] = -50
        sae.silent[5] = 77
    optimizer = torch.optim.Adam(sae.parameters(), lr=0.0)
    x = torch.randn(200, D_IN)
    masks = []
    for _ in range(6):
        out = sae(x)
        optimizer.zero_grad()
        sum(sae.losses(x, out).values()).backward()
        optimizer.step()
        before = sae.atoms.detach().clone()
        mask = sae.update_(x, out)
        clear_moments_(optimizer, sae, mask)
        masks.append(mask)
        if mask is None:
            torch.testing.assert_close(sae.atoms.detach(), before)
            continue
        for name in sae.atomwise:
            moment = optimizer.state[sae.get_parameter(name)]["exp_avg"].reshape(D_SAE, -1)
            assert not moment[mask].any()
            assert moment[~mask].any()
        torch.testing.assert_close(sae.atoms.detach()[~mask], before[~mask])
        worst = out.residual.square().sum(-1).argsort(descending=True)[: int(mask.sum())]
        torch.testing.assert_close(sae.atoms.detach()[mask], normalize(x[worst] - sae.bias, dim=-1).detach())
        if kind == "topk":
            torch.testing.assert_close(sae.encoder.detach()[mask], sae.atoms.detach()[mask])
            assert not sae.encoder_bias[mask].any()
        assert not sae.fired.any()
        assert not sae.silent[mask].any()
    assert [mask is None for mask in masks] == [True, False, True, False, True, True]  # every 2, until 4
    assert masks[1][5] or masks[1][3]
    if kind == "topk":
        assert masks[1][7]


def test_moments_of_runs_are_cleared_each_by_its_own_mask():
    runs = Runs(TopKSAE(4, 6, 2, seed=seed) for seed in range(2))
    optimizer = torch.optim.Adam(runs.parameters())
    x = torch.randn(50, 4)
    sum(runs.losses(x, runs(x)).values()).sum().backward()
    optimizer.step()
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 2] = True
    before = optimizer.state[runs.atoms]["exp_avg"].clone()
    clear_moments_(optimizer, runs, mask)
    after = optimizer.state[runs.atoms]["exp_avg"]
    assert not after[1, 2].any()
    assert torch.equal(after[~mask], before[~mask])
    clear_moments_(optimizer, runs, None)
    assert torch.equal(optimizer.state[runs.atoms]["exp_avg"], after)


def test_what_makes_no_sense_is_refused():
    for options, words in (({"every": 0}, "every"), ({"bound": -1}, "bound"), ({"until": -1}, "until")):
        with pytest.raises(ValueError, match=f"{words} of Reseed"):
            Reseed(**options)

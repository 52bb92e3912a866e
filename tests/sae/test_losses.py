import pytest
import torch
from torch.nn.functional import normalize

from mpsae import Auxiliary, BatchTopKSAE, JumpReLUSAE, MatchingPursuitSAE, ReLUSAE, Revival, TopKSAE
from mpsae.sae import losses

from .laws import D_IN, D_SAE, Laws


class TestEverythingOn(Laws):
    """The laws with every shared option at once."""

    def make(self, seed=0, **options):
        shared = {"tangent": True, "auxiliary": Auxiliary(k=2, after=1), "revival": Revival()}
        return TopKSAE(D_IN, D_SAE, 3, seed=seed, **shared | options)


class TestPursuitWithEverythingOn(Laws):
    def make(self, seed=0, **options):
        shared = {"tangent": True, "auxiliary": Auxiliary(k=2, after=1), "revival": Revival()}
        return MatchingPursuitSAE(D_IN, D_SAE, 3, seed=seed, **shared | options)


class TestRevivalAdded(Laws):
    def make(self, seed=0, **options):
        return TopKSAE(D_IN, D_SAE, 3, seed=seed, revival=Revival(1e-5, "added"), **options)


def silenced(sae, atoms=(4, 9)):
    """An SAE whose `atoms` are far below zero and have been silent for long."""
    with torch.no_grad():
        if hasattr(sae, "encoder_bias"):
            sae.encoder_bias[list(atoms)] = -50.0
        sae.silent[list(atoms)] = 10**9
    return sae


LINEAR = {
    "topk": lambda **o: TopKSAE(D_IN, D_SAE, 3, **o),
    "batchtopk": lambda **o: BatchTopKSAE(D_IN, D_SAE, 3, **o),
    "relu": lambda **o: ReLUSAE(D_IN, D_SAE, l1=0.1, **o),
    "jumprelu": lambda **o: JumpReLUSAE(D_IN, D_SAE, 3, **o),
}


def gradients(sae, term):
    x = torch.randn(30, D_IN)
    sae.zero_grad()
    sae.losses(x, sae(x))[term].backward()
    return {name: p.grad for name, p in sae.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", LINEAR)
def test_the_auxiliary_gradient_arrives_at_silent_atoms_however_far_below_zero(name):
    found = gradients(silenced(LINEAR[name](auxiliary=Auxiliary(k=2))), "auxiliary")
    for parameter in ("atoms", "encoder", "encoder_bias"):
        rows = found[parameter].reshape(D_SAE, -1).abs().sum(-1)
        assert (rows[[4, 9]] > 0).all(), parameter
        assert rows.sum() == rows[[4, 9]].sum(), f"{parameter} of atoms that fire gets a gradient too"


def test_the_auxiliary_gradient_of_a_pursuit_arrives_at_silent_atoms():
    found = gradients(silenced(MatchingPursuitSAE(D_IN, D_SAE, 3, auxiliary=Auxiliary(k=2))), "auxiliary")
    rows = found["atoms"].abs().sum(-1)
    assert (rows[[4, 9]] > 0).all()
    assert rows.sum() == rows[[4, 9]].sum()


def test_the_auxiliary_error_is_what_the_largest_silent_pre_activations_leave():
    residual, pre = torch.randn(6, 5), torch.randn(6, 8)
    atoms, silent = torch.randn(8, 5), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]).bool()
    expected = 0.0
    for row in range(6):
        allowed = [j for j in range(8) if silent[j]]
        chosen = sorted(allowed, key=lambda j: -pre[row, j].item())[:2]
        expected += (residual[row] - sum(pre[row, j] * atoms[j] for j in chosen)).square().sum() / 6
    torch.testing.assert_close(losses.auxiliary(residual, pre, silent, atoms, 2), expected)
    assert losses.auxiliary(residual, pre, silent & False, atoms, 2) == 0
    all_of_them = losses.auxiliary(residual, pre, silent, atoms, 100)
    torch.testing.assert_close(all_of_them, losses.squared_error(residual - (pre * silent) @ atoms))


def test_no_silent_atom_no_auxiliary_loss():
    sae, x = TopKSAE(D_IN, D_SAE, 3, auxiliary=Auxiliary(after=10)), torch.randn(30, D_IN)
    assert sae.losses(x, sae(x))["auxiliary"] == 0


@pytest.mark.parametrize("name", LINEAR)
def test_the_revival_gradient_arrives_at_units_below_zero_and_raises_them(name):
    sae = silenced(LINEAR[name](revival=Revival(weight=1e-5)))
    found = gradients(sae, "revival")["encoder_bias"]
    assert found[[4, 9]].tolist() == pytest.approx([-1e-5, -1e-5])  # descent raises the pre-activation


def test_the_revive_factor_added_as_the_text_has_it_gives_a_unit_below_zero_no_gradient():
    sae = silenced(ReLUSAE(D_IN, D_SAE, l1=0.1, revival=Revival(weight=1e-5, how="added")))
    x = torch.randn(30, D_IN)
    sum(sae.losses(x, sae(x)).values()).backward()
    assert not sae.encoder_bias.grad[[4, 9]].any()
    # It reaches a unit that is within 1e-5 of firing.
    with torch.no_grad():
        top = ((x - sae.bias) @ sae.encoder[4]).max()
        sae.encoder_bias[4] = -top - 5e-6
    sae.zero_grad()
    out = sae(x)
    assert (out.acts[:, 4] > 0).sum() == 1
    sum(sae.losses(x, out).values()).backward()
    assert sae.encoder_bias.grad[4] != 0
    assert not (sae.eval()(x).acts[:, 4] > 0).any()  # in training alone


def test_the_revival_of_a_pursuit_turns_unused_atoms_toward_the_inputs():
    sae, x = MatchingPursuitSAE(D_IN, D_SAE, 1, revival=Revival(weight=0.5)), torch.randn(4, D_IN) + 1
    out = sae(x)
    unused = torch.ones(D_SAE, dtype=torch.bool)
    unused[out.codes.indices.flatten().long()] = False
    sae.losses(x, out)["revival"].backward()
    expected = -0.5 * x.mean(0).expand(D_SAE, -1) * unused[:, None]
    torch.testing.assert_close(sae.atoms.grad, expected)
    with pytest.raises(ValueError, match="no pre-activations"):
        MatchingPursuitSAE(4, 8, 2, revival=Revival(how="added"))


def test_l1_is_of_what_is_written_so_that_growing_atoms_gains_nothing():
    acts, atoms = torch.rand(5, 8), torch.randn(8, 3)
    torch.testing.assert_close(losses.l1(acts, atoms), losses.l1(acts / 3, atoms * 3))
    torch.testing.assert_close(losses.l1(acts, normalize(atoms, dim=-1)), acts.sum(-1).mean())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopKSAE(4, 8, 2, auxiliary=0.1), "auxiliary must be a Auxiliary or None; got 0.1"),
        (lambda: TopKSAE(4, 8, 2, revival="added"), "revival must be a Revival or None"),
        (lambda: TopKSAE(4, 8, 2, reseed=100), r"use reseed=Reseed\(…\)"),
        (lambda: ReLUSAE(4, 8, l0=2, steering=0.1), "steering must be a Steering"),
        (lambda: Auxiliary(weight=-1), "weight of Auxiliary"),
        (lambda: Auxiliary(k=0), "k of Auxiliary"),
        (lambda: Auxiliary(after=-1), "after of Auxiliary"),
        (lambda: Revival(weight=float("nan")), "weight of Revival"),
        (lambda: Revival(how="never"), "how of Revival must be one of 'gradient', 'added'"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()

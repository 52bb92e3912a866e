import pytest
import torch

from mpsae import ReLUSAE, Runs, Steering

from . import plain
from .laws import D_IN, D_SAE, Laws


class TestReLU(Laws):
    def make(self, seed=0, **options):
        return ReLUSAE(D_IN, D_SAE, **({"l1": 0.05} | options), seed=seed)

    def test_what_is_scheduled_can_be_set_and_nothing_else(self):
        with pytest.raises(ValueError, match="goes toward no l0"):
            self.make().schedule_("l0", 3.0)


class TestSteeredAndNotCentred(Laws):
    def make(self, seed=0, **options):
        steered = {"l0": 3, "steering": Steering(ramp=2), "centred": False, "constraint": "free", "bias": False}
        return ReLUSAE(D_IN, D_SAE, seed=seed, **steered | options)


def test_values_losses_and_gradients_are_those_of_the_formulas():
    plain.assert_equal(ReLUSAE(9, 20, l1=0.3), lambda t, x: plain.relu(t, x, 0.3))


def test_k_reads_the_largest_of_what_is_active(tmp_path):
    sae, x = ReLUSAE(D_IN, D_SAE, l1=0.1), torch.randn(20, D_IN)
    acts = sae(x).acts
    for k in (1, 4, D_SAE):
        assert torch.equal(sae.at(k=k).encode(x).dense(), acts * (acts >= acts.topk(k).values[:, -1:]))
    with pytest.raises(ValueError, match="makes no pursuit"):
        sae.at(stop=3)
    with pytest.raises(ValueError, match="no SAE of its own"):
        sae.at(k=2).save(tmp_path)


def test_a_constant_weight_stays():
    sae, x = ReLUSAE(D_IN, D_SAE, l1=0.1), torch.randn(20, D_IN)
    for _ in range(5):
        sae.update_(x, sae(x))
    assert sae.l1_weight.item() == pytest.approx(0.1)


def test_two_sided_steering_reaches_the_wanted_l0_from_both_sides():
    for start in (1e-3, 3.0):
        sae = ReLUSAE(D_IN, D_SAE, l0=4, l1=start, steering=Steering(rate=0.02))
        optimizer = torch.optim.Adam(sae.parameters(), lr=1e-2)
        generator, seen = torch.Generator().manual_seed(0), []
        for _ in range(600):
            x = torch.randn(64, D_IN, generator=generator)
            out = sae(x)
            optimizer.zero_grad()
            sum(sae.losses(x, out).values()).backward()
            optimizer.step()
            sae.update_(x, out)
            seen.append((out.acts != 0).sum(-1).float().mean().item())
        assert sum(seen[-100:]) / 100 == pytest.approx(4, abs=0.5)


def test_one_sided_steering_is_never_lowered():
    sae, x = ReLUSAE(D_IN, D_SAE, l0=4, steering=Steering(rate=0.1, one_sided=True)), torch.randn(20, D_IN)
    assert (sae(x).acts != 0).sum(-1).float().mean() > 4
    sae.update_(x, sae(x))
    assert sae.l1_weight.item() == pytest.approx(0.11)
    sae.update_(0 * x, sae(0 * x))
    assert sae.l1_weight.item() == pytest.approx(0.11)


def test_the_weight_ramps_up_before_it_is_steered():
    sae, x = ReLUSAE(D_IN, D_SAE, l0=4, l1=0.1, steering=Steering(rate=0.5, ramp=4)), torch.randn(20, D_IN)
    base = ReLUSAE(D_IN, D_SAE, l1=1.0)
    unit = base.losses(x, base(x))["l1"].item()
    shares = []
    for _ in range(6):
        shares.append(sae.losses(x, sae(x))["l1"].item() / unit)
        sae.update_(x, sae(x))
    assert shares == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.15], rel=1e-4)


def test_runs_may_differ_in_their_weights():
    runs = Runs([ReLUSAE(D_IN, D_SAE, l1=l1) for l1 in (0.1, 0.1)])
    with torch.no_grad():
        runs.l1_weight.copy_(torch.tensor([0.1, 0.4]))
    x = torch.randn(20, D_IN)
    losses = runs.losses(x, runs(x))["l1"]
    assert (losses[1] / losses[0]).item() == pytest.approx(4, rel=1e-5)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="needs l0"):
        ReLUSAE(4, 8)
    with pytest.raises(ValueError, match="toward a wanted l0"):
        ReLUSAE(4, 8, l1=0.1, steering=Steering())
    for l0 in (0, 9):
        with pytest.raises(ValueError, match="l0"):
            ReLUSAE(4, 8, l0=l0)
    with pytest.raises(ValueError, match="l1 must be"):
        ReLUSAE(4, 8, l1=-1)
    for rate in (-1, 1.0):
        with pytest.raises(ValueError, match="rate of Steering"):
            Steering(rate=rate)
    with pytest.raises(ValueError, match="0 stays 0"):
        ReLUSAE(4, 8, l0=2, l1=0)

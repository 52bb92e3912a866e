import pytest
import torch

from mpsae import JumpReLUSAE
from mpsae.sae import losses

from . import plain
from .laws import D_IN, D_SAE, Laws


class TestJumpReLU(Laws):
    def make(self, seed=0, **options):
        return JumpReLUSAE(D_IN, D_SAE, 3, seed=seed, **options)


def test_values_losses_and_gradients_are_those_of_the_formulas():
    sae = JumpReLUSAE(9, 20, 3, weight=2.0, threshold=0.4, bandwidth=0.5)
    plain.assert_equal(sae, lambda t, x: plain.jumprelu(t, x, 3, 2.0, 0.5), rows=200)


def test_nothing_between_0_and_the_threshold_is_written():
    sae, x = JumpReLUSAE(D_IN, D_SAE, 3, threshold=0.5), torch.randn(50, D_IN)
    acts, pre = sae(x).acts, sae(x).pre
    assert torch.equal(acts, pre * (pre > 0.5))
    assert torch.equal(sae.at(k=1).encode(x).dense(), acts * (acts == acts.amax(-1, keepdim=True)))
    with pytest.raises(ValueError, match="makes no pursuit"):
        sae.at(stop=2)


def test_the_straight_through_gradient_moves_thresholds_toward_the_wanted_l0():
    for wanted in (1, 8):
        sae = JumpReLUSAE(D_IN, D_SAE, wanted, weight=100.0, threshold=0.3, bandwidth=0.3)
        optimizer = torch.optim.Adam([sae.log_threshold], lr=0.02)
        generator = torch.Generator().manual_seed(0)
        for _ in range(400):
            x = torch.randn(200, D_IN, generator=generator)
            optimizer.zero_grad()
            sae.losses(x, sae(x))["l0"].backward()
            optimizer.step()
        assert (sae(x).acts != 0).sum(-1).float().mean().item() == pytest.approx(wanted, rel=0.25)


def test_jump_is_exact_forward():
    pre, theta = torch.tensor([-1.0, 0.1, 0.3, 0.300001, 2.0]), torch.tensor(0.3)
    z, gate = losses.jump(pre, theta, 0.1)
    assert gate.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(z, pre * gate)


def test_what_makes_no_sense_is_refused():
    for options, words in (({"l0": 0}, "l0"), ({"threshold": 0.0}, "threshold"), ({"bandwidth": 0.0}, "bandwidth")):
        with pytest.raises(ValueError, match=words):
            JumpReLUSAE(**{"d_in": 4, "d_sae": 8, "l0": 2} | options)

import pytest
import torch

from mpsae import BatchTopKSAE

from . import plain
from .laws import D_IN, D_SAE, Laws


class TestBatchTopK(Laws):
    def make(self, seed=0, **options):
        return BatchTopKSAE(D_IN, D_SAE, 2.5, seed=seed, **options)


def test_values_losses_and_gradients_are_those_of_the_formulas():
    plain.assert_equal(BatchTopKSAE(9, 20, 3.3), lambda t, x: plain.batchtopk(t, x, 3.3))


@pytest.mark.parametrize("l0", [0.01, 1.36, 3.0])
def test_a_training_batch_keeps_one_more_than_l0_an_input(l0):
    sae, x = BatchTopKSAE(D_IN, D_SAE, l0), torch.randn(50, D_IN)
    assert (sae.train()(x).acts != 0).sum() == int(l0 * 50) + 1


def test_the_batch_decides_in_training_and_the_threshold_everywhere_else():
    sae, x = BatchTopKSAE(D_IN, D_SAE, 2), torch.randn(50, D_IN)
    with torch.no_grad():
        sae.threshold.fill_(0.7)
    expected = sae(x).pre.relu()
    expected = expected * (expected > 0.7)
    assert torch.equal(sae.encode(x).dense(), expected)
    assert torch.equal(sae.at(k=D_SAE).encode(x).dense(), expected)
    assert not torch.equal(sae(x).acts, expected)
    assert torch.equal(sae.eval()(x).acts, expected)
    two = sae.at(k=2).encode(x)
    assert torch.equal(two.dense(), sae.encode(x).top(2).dense())


def test_the_threshold_is_a_running_mean_of_the_smallest_activation_kept():
    sae = BatchTopKSAE(D_IN, D_SAE, 2, decay=0.9)
    expected = None
    for seed in range(4):
        x = torch.randn(50, D_IN, generator=torch.Generator().manual_seed(seed))
        out = sae(x)
        smallest = out.acts[out.acts > 0].min().item()
        expected = smallest if expected is None else 0.9 * expected + 0.1 * smallest
        sae.update_(x, out)
        assert sae.threshold.item() == pytest.approx(expected, rel=1e-5)
    silent = -10 * torch.ones_like(sae.encoder_bias)
    with torch.no_grad():
        sae.encoder_bias.copy_(silent)
    sae.update_(x, sae(x))
    assert sae.threshold.item() == pytest.approx(expected, rel=1e-5)


def test_inference_keeps_about_as_many():
    sae = BatchTopKSAE(D_IN, D_SAE, 3)
    for seed in range(50):
        x = torch.randn(100, D_IN, generator=torch.Generator().manual_seed(seed))
        sae.update_(x, sae(x))
    assert sae.encode(torch.randn(5000, D_IN)).l0().float().mean().item() == pytest.approx(3, abs=0.3)


def test_l0_may_be_set_between_updates():
    sae, x = BatchTopKSAE(D_IN, D_SAE, 3), torch.randn(50, D_IN)
    sae.l0 = 1.36
    assert (sae(x).acts != 0).sum() == 69


def test_what_makes_no_sense_is_refused():
    for l0 in (0, -1, 25):
        with pytest.raises(ValueError, match="l0"):
            BatchTopKSAE(D_IN, D_SAE, l0)
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\)"):
        BatchTopKSAE(D_IN, D_SAE, 2, decay=1.0)

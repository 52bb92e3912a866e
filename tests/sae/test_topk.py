import pytest
import torch

from mpsae import TopKSAE

from . import plain
from .laws import D_IN, D_SAE, K, Laws


class TestTopK(Laws):
    def make(self, seed=0, **options):
        return TopKSAE(D_IN, D_SAE, K, seed=seed, **options)


class TestMultiTopK(Laws):
    def make(self, seed=0, **options):
        return TopKSAE(D_IN, D_SAE, K, multi=0.125, constraint="sphere", seed=seed, **options)


@pytest.mark.parametrize("multi", [0.0, 0.125])
def test_values_losses_and_gradients_are_those_of_the_formulas(multi):
    plain.assert_equal(TopKSAE(9, 20, 4, multi=multi), lambda t, x: plain.topk(t, x, 4, multi))


def test_k_at_inference_is_its_k():
    sae, x = TopKSAE(D_IN, D_SAE, K), torch.randn(20, D_IN)
    for k in (1, K, 7):
        codes = sae.at(k=k).encode(x)
        assert codes.order == "magnitude"
        assert torch.equal(codes.dense(), plain_topk(sae(x).pre.relu(), k))
    with pytest.raises(ValueError, match="makes no pursuit"):
        sae.encode(x, stop=3)


def plain_topk(p, k):
    return p * (p >= p.topk(k).values[:, -1:])


def test_a_reading_at_another_k_can_be_saved(tmp_path):
    import mpsae

    TopKSAE(D_IN, D_SAE, K).at(k=2).save(tmp_path)
    assert mpsae.load(tmp_path).k == 2


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="at most the number of atoms, 8; got 9"):
        TopKSAE(4, 8, 9)
    with pytest.raises(ValueError, match="at most the number of atoms, 8; got 9"):
        TopKSAE(4, 8, 2).at(k=9)

import pytest
import torch

from mpsae import MatchingPursuitSAE, OrthogonalPursuitSAE, Stop

from . import plain
from .laws import D_IN, D_SAE, K, Laws


class TestOrthogonalPursuit(Laws):
    def make(self, seed=0, **options):
        return OrthogonalPursuitSAE(D_IN, D_SAE, K, seed=seed, **options)


def test_values_losses_and_gradients_are_those_of_the_formulas():
    sae = OrthogonalPursuitSAE(9, 20, 4, constraint="free")
    plain.assert_equal(sae, lambda t, x: plain.omp(t, x, 4))


def test_what_is_left_is_orthogonal_to_all_picks_and_less_than_pursuit_leaves():
    sae, x = OrthogonalPursuitSAE(D_IN, D_SAE, 5), torch.randn(50, D_IN)
    out = sae(x)
    products = torch.einsum("bkd,bd->bk", sae.atoms[out.codes.indices], out.residual)
    assert (products * out.codes.used).abs().max() < 1e-5
    plain_pursuit = MatchingPursuitSAE(D_IN, D_SAE, 5)
    assert out.residual.norm(dim=-1).mean() < plain_pursuit(x).residual.norm(dim=-1).mean()


def test_k_at_inference_encodes_again_and_a_prefix_is_refused():
    sae, x = OrthogonalPursuitSAE(D_IN, D_SAE, 5), torch.randn(50, D_IN)
    codes = sae.encode(x)
    assert codes.order == "orthogonal"
    with pytest.raises(ValueError, match="encode again with k=steps"):
        codes.prefix(2)
    two = sae.at(k=2).encode(x)
    assert torch.equal(two.indices, codes.indices[:, :2])
    assert not torch.allclose(two.values, codes.values[:, :2])
    assert (sae.at(stop=Stop(9, relative=0.4))(x).residual.norm(dim=-1) < 0.4 * x.norm(dim=-1)).all()


def test_repeat_means_nothing_to_it():
    with pytest.raises(ValueError, match="never picks an atom twice"):
        OrthogonalPursuitSAE(D_IN, D_SAE, Stop(3, repeat=True))

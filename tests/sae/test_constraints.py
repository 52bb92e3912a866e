import torch
from torch.nn.functional import normalize

from mpsae import MatchingPursuitSAE, TopKSAE
from mpsae.sae.constraints import constrained, tangent


def test_norms_are_what_the_constraint_asks_for():
    atoms = normalize(torch.randn(3, 5), dim=-1) * torch.tensor([[0.5], [1.0], [4.0]])
    for constraint, norms in (("sphere", [1, 1, 1]), ("ball", [0.5, 1, 1]), ("free", [0.5, 1, 4])):
        torch.testing.assert_close(constrained(atoms, constraint).norm(dim=-1), torch.tensor(norms).float())
    assert constrained(torch.zeros(2, 3), "sphere").isfinite().all()


def test_the_gradient_along_an_atom_is_gone_and_the_rest_is_whole():
    atoms = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, 5, dtype=torch.float64)
    assert torch.equal(tangent(atoms), atoms)
    gradient = torch.autograd.grad((tangent(atoms) * weights).sum(), atoms)[0]
    direction = normalize(atoms.detach(), dim=-1)
    torch.testing.assert_close((gradient * direction).sum(-1), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(gradient, weights - (weights * direction).sum(-1, keepdim=True) * direction)


def test_an_sae_uses_it_where_asked():
    x = torch.randn(40, 6)
    for make in (lambda **o: MatchingPursuitSAE(6, 12, 3, **o), lambda **o: TopKSAE(6, 12, 3, **o)):
        for asked in (True, False):
            sae = make(tangent=asked)
            sum(sae.losses(x, sae(x)).values()).backward()
            radial = (sae.atoms.grad * sae.atoms).sum(-1).abs().max()
            assert (radial < 1e-5) == asked

"""Orthogonal pursuit against numpy's least squares, its gradient, its axis of runs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn.functional import normalize

from mpsae import Stop
from mpsae.ops.pursuit.orthogonal import _backward_op, pursue_orthogonal
from mpsae.ops.pursuit.reference import row_norms
from mpsae.ops.pursuit.stop import make_floors
from tests.problems import problems


def pursue(x, atoms, steps, select="absolute", **rules):
    """values, indices, lengths, residual of one run."""
    floors = make_floors(x, Stop(steps, **rules).limits)
    return [t[0] for t in pursue_orthogonal(x[None], atoms[None], floors[None], steps, select, "exact")[:4]]


def oracle(x, atoms, steps, select):
    """Picks and coefficients of one input: the textbook, with numpy's least squares."""
    picks, z, r = [], np.zeros(0), x
    while len(picks) < steps:
        c = atoms @ r
        j = int(np.argmax(np.abs(c) if select == "absolute" else c))
        if (c[j] if select == "positive" else abs(c[j])) <= 16 * np.finfo(float).eps * np.linalg.norm(x):
            break
        if np.linalg.matrix_rank(atoms[[*picks, j]], tol=1e-7 * np.linalg.norm(atoms[j])) == len(picks):
            break
        picks.append(j)
        z = np.linalg.lstsq(atoms[picks].T, x, rcond=None)[0]
        r = x - atoms[picks].T @ z
    return picks, z, r


@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
@pytest.mark.parametrize("norms", ["unit", "any"])
def test_picks_and_coefficients_are_least_squares(select, norms):
    atoms = normalize(torch.randn(30, 10, dtype=torch.float64), dim=-1)
    if norms == "any":
        atoms = atoms * torch.linspace(0.2, 3, 30, dtype=torch.float64)[:, None]
    x = torch.randn(12, 10, dtype=torch.float64)
    values, indices, lengths, residual = pursue(x, atoms, 6, select)
    for row in range(12):
        picks, z, r = oracle(x[row].numpy(), atoms.numpy(), 6, select)
        n = len(picks)
        assert lengths[row] == n
        assert indices[row, :n].tolist() == picks
        np.testing.assert_allclose(values[row, :n].numpy(), z, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(residual[row].numpy(), r, rtol=1e-8, atol=1e-10)
        assert not values[row, n:].any()


@given(problems())
def test_the_residual_is_orthogonal_to_every_pick_and_no_atom_is_picked_twice(problem):
    x, atoms, k, select = problem
    values, indices, lengths, residual = pursue(x, atoms, k, select)
    scale = row_norms(x)[:, None]
    used = torch.arange(k) < lengths[:, None]
    products = torch.einsum("bkd,bd->bk", atoms[indices], residual).where(used, 0.0)
    assert (products.abs() <= 1e-6 * scale).all()
    left = x - torch.einsum("bk,bkd->bd", values, atoms[indices])
    assert ((left - residual).abs() <= 1e-6 * scale).all()
    for row, n in enumerate(lengths.tolist()):
        assert len(set(indices[row, :n].tolist())) == n
        assert n <= min(x.shape[1], len(atoms))


def test_as_many_picks_as_dimensions_leave_nothing():
    atoms, x = normalize(torch.randn(40, 8, dtype=torch.float64), dim=-1), torch.randn(9, 8, dtype=torch.float64)
    _, _, lengths, residual = pursue(x, atoms, 20)
    assert lengths.tolist() == [8] * 9
    assert residual.abs().max() < 1e-12


def test_the_error_is_at_most_that_of_plain_pursuit_along_the_same_picks():
    atoms, x = normalize(torch.randn(40, 16, dtype=torch.float64), dim=-1), torch.randn(50, 16, dtype=torch.float64)
    errors = torch.stack([pursue(x, atoms, k)[3].norm(dim=-1) for k in range(1, 9)])
    assert (errors.diff(dim=0) < 0).all()


@pytest.mark.parametrize("select", ["positive", "absolute"])
def test_gradcheck(select):
    x = torch.randn(4, 7, dtype=torch.float64)
    atoms = normalize(torch.randn(3, 7, dtype=torch.float64), dim=-1) * 1.2  # fewer than steps: slots stay unused

    def run(x, atoms):
        values, _, _, residual = pursue(x, atoms, 4, select)
        return values, residual

    assert torch.autograd.gradcheck(run, (x.requires_grad_(), atoms.requires_grad_()))


@pytest.mark.parametrize("which", ["values", "residual", "both"])
def test_gradients_equal_autograd_through_the_least_squares(which):
    x = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    atoms = normalize(torch.randn(20, 9, dtype=torch.float64), dim=-1).requires_grad_()
    values, indices, _, residual = pursue(x, atoms, 5)
    picked = atoms[indices]  # [B, k, d]
    theirs = torch.linalg.solve(picked @ picked.mT, (picked @ x[..., None]))[..., 0]
    left = x - (theirs[..., None] * picked).sum(1)
    weights = torch.randn_like(values)

    def loss(values, residual):
        terms = {"values": (values * weights).sum(), "residual": residual.pow(3).sum()}
        return sum(terms.values()) if which == "both" else terms[which]

    ours = torch.autograd.grad(loss(values, residual), (x, atoms))
    for mine, other in zip(ours, torch.autograd.grad(loss(theirs, left), (x, atoms)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)


def test_vmap_equals_a_loop_gradients_too():
    x = torch.randn(6, 9, dtype=torch.float64)
    atoms = normalize(torch.randn(3, 20, 9, dtype=torch.float64), dim=-1).requires_grad_()
    together = torch.vmap(lambda a: tuple(pursue(x, a, 4)))(atoms)
    parts = [pursue(x, a, 4) for a in atoms]
    for i, tensor in enumerate(together):
        torch.testing.assert_close(tensor, torch.stack([part[i] for part in parts]))
    ours = torch.autograd.grad(together[0].square().sum(), atoms)[0]
    theirs = torch.autograd.grad(sum(part[0].square().sum() for part in parts), atoms)[0]
    torch.testing.assert_close(ours, theirs)


def test_an_input_with_nan_gets_no_picks_and_spoils_no_other():
    atoms, x = normalize(torch.randn(20, 6), dim=-1), torch.randn(3, 6)
    x[1, 0] = torch.nan
    values, _, lengths, residual = pursue(x, atoms, 3)
    assert lengths.tolist() == [3, 0, 3]
    assert residual[1].isnan().all()
    assert values.isfinite().all()


def test_opcheck():
    x = torch.randn(2, 5, 7).requires_grad_()
    atoms = normalize(torch.randn(2, 11, 7), dim=-1).requires_grad_()
    floors = make_floors(x, Stop(4).limits)
    torch.library.opcheck(pursue_orthogonal, (x, atoms, floors, 4, "absolute", "exact"))
    values, indices, lengths, residual, lower = pursue_orthogonal(
        x.detach(), atoms.detach(), floors, 4, "absolute", "exact"
    )
    for wants_atoms in (True, False):
        saved = (values, indices, lengths, residual, lower, atoms.detach(), wants_atoms)
        torch.library.opcheck(_backward_op, (torch.randn_like(values), residual, *saved))

"""The paper's propositions and the laws of pursuit, each under the rules and norms for which it is true."""

import pytest
import torch
from hypothesis import given
from torch.nn.functional import normalize

from mpsae import Stop, pursue
from mpsae.ops.pursuit.reference import row_norms
from tests.problems import KINDS, UNIT, dictionary, problems


def walk(x, atoms, codes):
    """Yields of each step, in float64 and from the codes alone: used, value, atom, residual before and after."""
    residual = x.clone()
    for t in range(codes.values.shape[-1]):
        atom, value, used = atoms[codes.indices[:, t]], codes.values[:, t], codes.used[:, t]
        after = residual - value[:, None] * atom
        yield used, value, atom, residual, after
        residual = after


def close(a, b, scale):
    """a = b to rounding, where the quantities are of size `scale` [N]."""
    return ((a - b).abs() <= 1e-11 * scale + 1e-300).all()


@given(problems())
def test_every_step_is_greedy(problem):
    x, atoms, k, select = problem
    sizes = row_norms(x)
    for used, value, _, before, _ in walk(x, atoms, pursue(x, atoms, k, select=select).codes):
        correlations = before @ atoms.T
        best = (correlations.abs() if select == "absolute" else correlations).max(-1).values
        own = value.abs() if select == "absolute" else value
        assert close(own[used], best[used], sizes[used])


@given(problems(kinds=UNIT))
def test_residual_is_orthogonal_to_the_last_atom(problem):  # Proposition 1
    x, atoms, k, select = problem
    for used, _, atom, _, after in walk(x, atoms, pursue(x, atoms, k, select=select).codes):
        assert close((atom * after).sum(-1)[used], 0.0, row_norms(x)[used])


@given(problems())
def test_what_is_left_of_the_last_correlation_follows_from_the_norm(problem):
    x, atoms, k, select = problem
    for used, value, atom, _, after in walk(x, atoms, pursue(x, atoms, k, select=select).codes):
        expected = value * (1 - atom.square().sum(-1))
        assert close((atom * after).sum(-1)[used], expected[used], row_norms(x)[used])


def test_residual_is_not_orthogonal_to_an_atom_of_another_norm():
    x, atoms = torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.0]])
    found = pursue(x, atoms, 1)
    assert (atoms @ found.residual[0]).item() == pytest.approx(0.5 * (1 - 0.25))


@given(problems(kinds=UNIT))
def test_each_pick_takes_its_square_from_the_energy(problem):  # Proposition 2
    x, atoms, k, select = problem
    scale = row_norms(x)
    for used, value, _, before, after in walk(x, atoms, pursue(x, atoms, k, select=select).codes):
        drop = (before / scale[:, None]).square().sum(-1) - (after / scale[:, None]).square().sum(-1)
        assert ((drop - (value / scale).square())[used].abs() < 1e-11).all()
        assert (row_norms(after) <= row_norms(before) * (1 + 1e-12)).all()


@given(problems(kinds=("scaled",)))
def test_the_energy_falls_for_every_norm_below_root_two(problem):
    x, atoms, k, select = problem
    scale = row_norms(x)
    for used, value, atom, before, after in walk(x, atoms, pursue(x, atoms, k, select=select).codes):
        drop = (before / scale[:, None]).square().sum(-1) - (after / scale[:, None]).square().sum(-1)
        expected = (value / scale).square() * (2 - atom.square().sum(-1))
        assert ((drop - expected)[used].abs() < 1e-11).all()
        assert (row_norms(after) <= row_norms(before) * (1 + 1e-12)).all()


def test_the_energy_grows_for_a_norm_above_root_two():
    x = torch.tensor([[1.0, 0.0]])
    assert pursue(x, torch.tensor([[1.5, 0.0]]), 1).residual.norm() > x.norm()


@given(problems(kinds=UNIT))
def test_energy_is_what_was_picked_and_what_is_left(problem):
    x, atoms, k, select = problem
    found = pursue(x, atoms, k, select=select)
    scale = row_norms(x).clamp(min=1e-300)
    parts = (found.residual / scale[:, None]).square().sum(-1) + (found.codes.values / scale[:, None]).square().sum(-1)
    assert ((parts - (x / scale[:, None]).square().sum(-1)).abs() < 1e-11).all()


@given(problems())
def test_the_residual_is_what_the_codes_leave(problem):
    x, atoms, k, select = problem
    found = pursue(x, atoms, k, select=select)
    left = x - found.codes.dense() @ atoms
    assert ((found.residual - left).abs().amax(-1) <= 1e-11 * row_norms(x)).all()


def projection_left(x, atoms, residual):
    """The share of x's projection on the span of the atoms that is still in the residual."""
    span = torch.linalg.svd(atoms, full_matrices=False).Vh[: torch.linalg.matrix_rank(atoms)]
    return (residual @ span.T).norm(dim=-1) / (x @ span.T).norm(dim=-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d_sae", [4, 12])
def test_absolute_converges_to_the_projection_on_the_span(kind, d_sae):  # Proposition 3
    generator = torch.Generator().manual_seed(0)
    atoms = dictionary(kind, d_sae, 6, generator)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    found = pursue(x, atoms, 20_000 if kind in ("coherent", "scaled") else 3000, select="absolute")
    assert projection_left(x, atoms, found.residual).max() < 1e-6


@pytest.mark.parametrize("select", ["positive", "signed"])
def test_others_converge_where_the_atoms_positively_span(select):  # Proposition 3
    generator = torch.Generator().manual_seed(0)
    atoms = dictionary("random", 25 * 8, 8, generator)
    x = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    assert projection_left(x, atoms, pursue(x, atoms, 1500, select=select).residual).max() < 1e-6


def test_positive_does_not_converge_where_they_do_not():  # Proposition 3, the counter-example
    generator = torch.Generator().manual_seed(0)
    atoms = dictionary("random", 32, 32, generator)
    x = torch.randn(200, 32, generator=generator, dtype=torch.float64)
    found = pursue(x, atoms, 2000)
    assert (found.residual @ atoms.T).max() < 1e-6  # nothing positive is left
    assert 0.6 < projection_left(x, atoms, found.residual).median() < 0.8
    assert projection_left(x, atoms, pursue(x, atoms, 2000, select="signed").residual).median() > 0.5


@given(problems(selects=("positive",)))
def test_under_positive_the_largest_correlation_goes_to_zero(problem):
    x, atoms, _, _ = problem
    left = pursue(x, atoms, 3000).residual @ atoms.T
    assert (left.max(-1).values <= 0.02 * row_norms(x)).all()


@given(problems())
def test_prefixes_agree(problem):
    x, atoms, k, select = problem
    longer = pursue(x, atoms, k, select=select).codes
    for t in range(1, k):
        shorter = pursue(x, atoms, t, select=select).codes
        assert torch.equal(longer.prefix(t).values, shorter.values)
        assert torch.equal(longer.prefix(t).indices, shorter.indices)
        assert torch.equal(longer.prefix(t).lengths, shorter.lengths)


@given(problems())
def test_scaling_by_powers_of_two_scales_values_alone(problem):
    x, atoms, k, select = problem
    plain, scaled = (pursue(factor * x, atoms, k, select=select) for factor in (1.0, 2.0**-7))
    assert torch.equal(plain.codes.values * 2.0**-7, scaled.codes.values)
    assert torch.equal(plain.codes.indices, scaled.codes.indices)
    assert torch.equal(plain.residual * 2.0**-7, scaled.residual)


@given(problems())
def test_the_order_of_atoms_does_not_matter_up_to_equal_ones(problem):
    x, atoms, k, select = problem
    order = torch.randperm(len(atoms))
    plain, permuted = pursue(x, atoms, k, select=select), pursue(x, atoms[order], k, select=select)
    assert ((plain.residual - permuted.residual).abs().amax(-1) <= 1e-9 * row_norms(x)).all()
    # Compared by what each step takes away: d and −d tie under "absolute", and take the same.
    steps = plain.codes.values[..., None] * atoms[plain.codes.indices]
    steps_permuted = permuted.codes.values[..., None] * atoms[order][permuted.codes.indices]
    assert ((steps - steps_permuted).abs().amax((-1, -2)) <= 1e-9 * row_norms(x)).all()


@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_codes_on_an_orthonormal_dictionary_are_recovered(select):
    generator = torch.Generator().manual_seed(0)
    atoms = dictionary("orthonormal", 12, 16, generator)
    z = torch.rand(50, 12, generator=generator, dtype=torch.float64) + 0.2
    z = z * (torch.rand(50, 12, generator=generator) < 0.4)
    codes = pursue(z @ atoms, atoms, 12, select=select).codes
    torch.testing.assert_close(codes.dense(), z, rtol=1e-12, atol=1e-13)
    assert torch.equal(codes.l0(), (z != 0).sum(-1).int())
    assert (codes.values.diff(dim=-1) <= 0).all()  # the largest first


def test_ties_go_to_the_lowest_index():
    atoms = torch.eye(3)[[2, 1, 1, 0, 1]]
    codes = pursue(torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), atoms, 3).codes
    assert codes.indices[0, 0] == 1
    assert codes.indices[1].tolist() == [0, 1, 3]


def test_an_atom_picked_again_adds_up():
    found = pursue(torch.tensor([1.0]), torch.tensor([[0.5]]), 3)
    assert found.codes.indices.tolist() == [0, 0, 0]
    assert found.codes.values.tolist() == [0.5, 0.375, 0.28125]
    assert found.codes.dense().tolist() == [1.15625]


def test_more_steps_than_dimensions_are_fine():
    atoms = dictionary("random", 50, 4, torch.Generator().manual_seed(0))
    found = pursue(torch.rand(20, 4, dtype=torch.float64) - 0.5, atoms, 60)
    assert found.residual.norm(dim=-1).max() < 1e-3
    assert found.codes.lengths.max() > 10


@pytest.mark.parametrize("size", [1e-37, 1e-20, 1.0, 1e20, 1e38])
def test_any_finite_size_is_pursued(size):
    x = torch.randn(5, 8) * size
    atoms = normalize(torch.randn(30, 8), dim=-1)
    stop = Stop(4, relative=0.3, cosine=0.1)
    plain, scaled = pursue(x / size, atoms, stop), pursue(x, atoms, stop)
    assert torch.equal(plain.codes.lengths, scaled.codes.lengths)
    assert torch.equal(plain.codes.indices, scaled.codes.indices)


def test_an_input_with_nan_or_inf_gets_no_picks_and_spoils_no_other():
    x, atoms = torch.randn(4, 6), normalize(torch.randn(20, 6), dim=-1)
    spoiled = x.clone()
    spoiled[1, 2], spoiled[3, 0] = torch.nan, torch.inf
    clean, found = pursue(x, atoms, 3), pursue(spoiled, atoms, 3)
    assert found.codes.lengths.tolist() == [3, 0, 3, 0]
    assert found.residual[[1, 3]].isnan().all()
    assert not found.codes.values[[1, 3]].any()
    assert torch.equal(clean.residual[[0, 2]], found.residual[[0, 2]])


def test_an_input_with_nan_spoils_no_gradient_of_a_loss_that_leaves_it_out():
    x, atoms = torch.randn(4, 6), normalize(torch.randn(20, 6), dim=-1).requires_grad_()
    x[1, 2] = torch.nan
    (pursue(x, atoms, 3).residual[[0, 2, 3]].square().sum()).backward()
    expected = torch.autograd.grad(pursue(x[[0, 2, 3]], atoms, 3).residual.square().sum(), atoms)[0]
    torch.testing.assert_close(atoms.grad, expected)


def test_an_atom_with_nan_shows_in_every_residual():
    x, atoms = torch.randn(4, 6), normalize(torch.randn(20, 6), dim=-1)
    atoms[7, 1] = torch.nan
    found = pursue(x, atoms, 3)
    assert found.codes.lengths.tolist() == [0, 0, 0, 0]
    assert found.residual.isnan().any(-1).all()


def test_the_largest_correlation_need_not_go_to_zero_for_norms_above_root_two():
    x = torch.tensor([[1.0, 0.0]])
    atoms = torch.tensor([[1.5, 0.0], [-1.5, 0.0]])
    assert (pursue(x, atoms, 50).residual @ atoms.T).max() > 10


def test_the_loop_ends_once_all_rows_have(monkeypatch):
    seen = []
    real = torch.Tensor.argmax
    monkeypatch.setattr(torch.Tensor, "argmax", lambda self, dim: seen.append(1) or real(self, dim))
    pursue(torch.eye(4), torch.eye(4), 1000)
    assert len(seen) == 2  # one pick, and the look that finds nothing left

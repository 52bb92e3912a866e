"""The operator: its gradient, its axis of runs, its forms, what it refuses, its memory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn.functional import normalize

from mpsae import Stop, pursue
from mpsae.ops import pursuit
from mpsae.ops.pursuit import reference
from tests.ops.pursuit import oracle
from tests.problems import dictionary, problems

LOSSES = ("residual", "values", "both")


def unrolled(x, atoms, steps, select="positive"):
    """The pursuit as autograd sees it: every step in the graph."""
    residual, values = x, []
    for _ in range(steps):
        correlations = residual @ atoms.T
        pick = (correlations.abs() if select == "absolute" else correlations).argmax(-1)
        value = (residual * atoms[pick]).sum(-1)
        taken = (value if select == "positive" else value.abs()) > 1e-12  # ±ε is left of a pick's own
        value = value.where(taken, 0.0)
        values.append(value)
        residual = residual - value[:, None] * atoms[pick]
    return torch.stack(values, -1), residual


def loss_of(which, values, residual, weights):
    terms = {"values": (values * weights[0]).sum(), "residual": (residual * weights[1]).sum() + residual.square().sum()}
    return sum(terms.values()) if which == "both" else terms[which]


def gradient_problem(kind, steps=7):
    generator = torch.Generator().manual_seed(1)
    atoms = dictionary(kind, 13, 6, generator)
    x = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    x[3] = -atoms.sum(0) * 1e-3  # few positive picks: unused slots
    x[4] = 0
    weights = torch.randn(9, steps, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    return x.requires_grad_(), atoms.requires_grad_(), weights


@pytest.mark.parametrize("kind", ["random", "scaled"])
@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_gradcheck(kind, select):
    x, atoms, _ = gradient_problem(kind, 4)

    def run(x, atoms):
        found = pursue(x, atoms, 4, select=select)
        return found.codes.values, found.residual

    assert torch.autograd.gradcheck(run, (x[:3].detach().requires_grad_(), atoms))


@pytest.mark.parametrize("which", LOSSES)
@pytest.mark.parametrize("kind", ["random", "coherent", "duplicates", "scaled"])
@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_gradients_equal_autograd_through_the_unrolled_pursuit(kind, select, which):
    x, atoms, weights = gradient_problem(kind)
    found = pursue(x, atoms, 7, select=select)
    if select == "positive":
        assert not found.codes.used.all()
    ours = torch.autograd.grad(loss_of(which, found.codes.values, found.residual, weights), (x, atoms))
    theirs = torch.autograd.grad(loss_of(which, *unrolled(x, atoms, 7, select), weights), (x, atoms))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)


@given(problems())
def test_values_picks_and_gradients_equal_the_oracle(problem):
    x, atoms, k, select = problem
    x, atoms = x.requires_grad_(), atoms.requires_grad_()
    found = pursue(x, atoms, k, select=select)
    grad_values, grad_residual = torch.randn_like(found.codes.values), torch.randn_like(x)
    outputs = (found.codes.values, found.residual)
    grad_x, grad_atoms = torch.autograd.grad(outputs, (x, atoms), (grad_values, grad_residual))
    expected_atoms = np.zeros(atoms.shape)
    x, atoms = x.detach().numpy(), atoms.detach().numpy()
    scale = np.linalg.norm(x, axis=1)
    for row in range(len(x)):
        # The oracle judges the same picks: after a near tie two paths are equally right and differ.
        picks = list(zip(found.codes.indices[row].tolist(), found.codes.values[row].tolist(), strict=True))
        picks = picks[: int(found.codes.lengths[row])]
        own, residuals = oracle.pursue(x[row], atoms, k, select)
        if [index for index, _ in own] == [index for index, _ in picks]:
            assert np.allclose([v for _, v in own], [v for _, v in picks], rtol=1e-9, atol=1e-12 * scale[row])
        assert np.allclose(np.linalg.norm(residuals[-1]), found.residual[row].norm().item(), atol=1e-9 * scale[row])
        residuals = [x[row] - sum((v * atoms[i] for i, v in picks[:t]), np.zeros(x.shape[1])) for t in range(k)]
        grad, more = oracle.gradients(picks, residuals, atoms, grad_values[row].numpy(), grad_residual[row].numpy())
        expected_atoms += more
        np.testing.assert_allclose(grad_x[row].numpy(), grad, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(grad_atoms.numpy(), expected_atoms, rtol=1e-9, atol=1e-9 * (1 + scale.max()))


def test_nothing_is_lost_walking_back_a_thousand_picks_in_float32():
    x, atoms = torch.randn(20, 64), normalize(torch.randn(256, 64), dim=-1)
    single = [x.clone().requires_grad_(), atoms.clone().requires_grad_()]
    double = [x.double().requires_grad_(), atoms.double().requires_grad_()]
    found = pursue(*single, 1024)
    # In float64 along the same picks, so that the gradients are of one function.
    residual = double[0]
    for t in range(1024):
        atom = double[1][found.codes.indices[:, t]]
        residual = residual - ((residual * atom).sum(-1) * found.codes.used[:, t])[:, None] * atom
    ours = torch.autograd.grad(found.residual.sum(), single)
    theirs = torch.autograd.grad(residual.sum(), double)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < 2e-5 * other.norm()


def test_x_alone_gets_its_gradient_where_the_atoms_want_none():
    x, atoms, _ = gradient_problem("random")
    both = torch.autograd.grad(pursue(x, atoms, 5).residual.sum(), (x, atoms))
    alone = torch.autograd.grad(pursue(x, atoms.detach(), 5).residual.sum(), x)
    assert torch.equal(both[0], alone[0])


def test_forward_mode_and_double_backward_are_refused():
    x, atoms, _ = gradient_problem("random")
    with pytest.raises(NotImplementedError, match="reverse mode"):
        torch.func.jvp(lambda x: pursue(x, atoms.detach(), 3).residual, (x.detach(),), (x.detach(),))
    gradient = torch.autograd.grad(pursue(x, atoms, 3).residual.square().sum(), x, create_graph=True)[0]
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(gradient.sum(), x)


# The axis of runs.


@pytest.mark.parametrize("mapped", ["atoms", "inputs", "both"])
def test_vmap_equals_a_loop_gradients_too(mapped):
    runs = 4
    atoms = normalize(torch.randn(runs, 17, 6, dtype=torch.float64), dim=-1)
    x = torch.randn(runs, 8, 6, dtype=torch.float64)
    atoms, x = atoms[0] if mapped == "inputs" else atoms, x[0] if mapped == "atoms" else x
    atoms, x = atoms.requires_grad_(), x.requires_grad_()
    dims = (None if mapped == "atoms" else 0, None if mapped == "inputs" else 0)
    together = torch.vmap(lambda x, atoms: pursue(x, atoms, Stop(5, relative=0.2)), in_dims=dims)(x, atoms)

    def run(i):
        return pursue(x if dims[0] is None else x[i], atoms if dims[1] is None else atoms[i], Stop(5, relative=0.2))

    each = [run(i) for i in range(runs)]
    for name in ("values", "indices", "lengths"):
        assert torch.equal(getattr(together.codes, name), torch.stack([getattr(p.codes, name) for p in each]))
    assert torch.equal(together.residual, torch.stack([p.residual for p in each]))
    weights = torch.randn_like(together.codes.values)
    loss = (together.codes.values * weights).sum() + together.residual.square().sum()
    looped = sum((p.codes.values * w).sum() + p.residual.square().sum() for p, w in zip(each, weights, strict=True))
    for mine, other in zip(torch.autograd.grad(loss, (x, atoms)), torch.autograd.grad(looped, (x, atoms)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


def test_inputs_shared_by_runs_are_expanded_never_copied(monkeypatch):
    seen = {}
    real = reference.pursue

    def spy(x, atoms, *more):
        seen.update(x=(x.shape, x.stride(), x.data_ptr()), atoms=(atoms.shape, atoms.stride(), atoms.data_ptr()))
        return real(x, atoms, *more)

    monkeypatch.setattr(reference, "pursue", spy)
    x, atoms = torch.randn(8, 6), normalize(torch.randn(3, 17, 6), dim=-1)
    torch.vmap(lambda a: pursue(x, a, 2).residual)(atoms)
    assert seen["x"] == ((3, 8, 6), (0, 6, 1), x.data_ptr())
    assert seen["atoms"][2] == atoms.data_ptr()
    torch.vmap(lambda x: pursue(x, atoms[0], 2).residual)(torch.randn(5, 8, 6))
    assert seen["atoms"] == ((5, 17, 6), (0, 6, 1), atoms.data_ptr())


@pytest.mark.parametrize("select", ["positive", "absolute"])
@pytest.mark.parametrize("runs", [1, 3])
def test_opcheck(runs, select):
    x = torch.randn(runs, 5, 7).requires_grad_()
    atoms = normalize(torch.randn(runs, 11, 7), dim=-1).requires_grad_()
    torch.library.opcheck(pursuit._pursue, (x, atoms, torch.zeros(runs, 5, 3), 4, True, select, "exact"))
    values, indices, lengths, residual = pursuit._pursue(
        x.detach(), atoms.detach(), torch.zeros(runs, 5, 3), 4, False, select, "exact"
    )
    for wants_atoms in (True, False):
        torch.library.opcheck(
            pursuit._pursue_backward,
            (torch.randn_like(values), residual, values, indices, lengths, residual, atoms.detach(), wants_atoms),
        )


# Forms.


@pytest.mark.parametrize("leading", [(), (0,), (1,), (7,), (2, 3), (2, 0, 3)])
def test_any_leading_shape_is_the_flat_one(leading):
    atoms = normalize(torch.randn(11, 5), dim=-1)
    x = torch.randn(*leading, 5)
    found, flat = pursue(x, atoms, 3), pursue(x.reshape(-1, 5), atoms, 3)
    assert found.codes.values.shape == (*leading, 3)
    assert found.codes.lengths.shape == leading
    assert torch.equal(found.codes.values.reshape(-1, 3), flat.codes.values)
    assert torch.equal(found.codes.indices.reshape(-1, 3), flat.codes.indices)
    assert torch.equal(found.residual.reshape(-1, 5), flat.residual)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_differentiable(dtype):
    x, atoms = torch.randn(6, 8).to(dtype).requires_grad_(), normalize(torch.randn(20, 8), dim=-1).to(dtype)
    atoms.requires_grad_()
    found = pursue(x, atoms, 4)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert found.codes.values.dtype == found.residual.dtype == wide
    expected = pursue(x.detach().to(wide), atoms.detach().to(wide), 4)
    assert torch.equal(found.codes.values, expected.codes.values)
    found.residual.square().sum().backward()
    assert x.grad.dtype == atoms.grad.dtype == dtype
    assert x.grad.abs().sum() > 0 < atoms.grad.abs().sum()


def test_strided_and_offset_inputs_are_the_same_inputs():
    x, atoms = torch.randn(6, 8), normalize(torch.randn(20, 8), dim=-1)
    plain = pursue(x, atoms, 4)
    big = torch.full((13, 17), torch.nan)
    big[1::2, 1::2] = x
    wide = torch.full((8, 41), torch.nan)
    wide[:, 1::2] = atoms.T
    found = pursue(big[1::2, 1::2], wide[:, 1::2].T, 4)
    torch.testing.assert_close(found.residual, plain.residual)
    assert torch.equal(found.codes.indices, plain.codes.indices)


def test_one_atom_is_a_dictionary():
    found = pursue(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]), 5)
    assert found.codes.lengths.tolist() == [1]
    assert found.residual.tolist() == [[0.0, 4.0]]


@pytest.mark.parametrize(
    ("x", "atoms", "options", "words"),
    [
        (torch.randn(3, 5), torch.randn(7, 6), {}, "the last dimension of x must be 6"),
        (np.ones((3, 6)), torch.randn(7, 6), {}, r"x must be a torch.Tensor; got ndarray: use torch.as_tensor\(x\)"),
        (torch.randn(3, 6), [[1.0] * 6], {}, "atoms must be a torch.Tensor; got list"),
        (torch.tensor(1.0), torch.randn(7, 6), {}, "the last dimension of x must be 6"),
        (torch.randn(3, 6), torch.randn(6), {}, r"matrix \[d_sae, d_in\]"),
        (torch.randn(3, 6), torch.randn(0, 6), {}, "at least one row"),
        (torch.ones(3, 6, dtype=torch.int64), torch.randn(7, 6), {}, r"use x\.float\(\)"),
        (torch.randn(3, 6), torch.ones(7, 6, dtype=torch.complex64), {}, r"use atoms\.float\(\)"),
        (torch.randn(3, 6), torch.randn(7, 6, device="meta"), {}, "on one device"),
        (torch.randn(3, 6), torch.randn(7, 6), {"stop": 0}, "≥ 1"),
        (torch.randn(3, 6), torch.randn(7, 6), {"select": "largest"}, "'positive', 'signed', 'absolute'"),
        (torch.randn(3, 6), torch.randn(7, 6), {"backend": "triton"}, "'auto', 'reference'; got 'triton'"),
        (torch.randn(3, 6), torch.randn(7, 6), {"precision": "high"}, "'exact', 'fast'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(x, atoms, options, words):
    with pytest.raises(ValueError, match=words):
        pursue(x, atoms, **{"stop": 2} | options)


# Memory.


def peak_bytes(run):
    """The most resident memory that `run` takes above what is resident now."""

    def status(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again from here
    before = status("VmRSS")
    result = run()
    return status("VmHWM") - before, result


def test_memory_beyond_the_result_does_not_grow_with_the_steps():
    inputs, d_in = 4000, 256
    x = torch.randn(inputs, d_in).requires_grad_()
    atoms = normalize(torch.randn(512, d_in), dim=-1).requires_grad_()

    def run(steps):
        found = pursue(x, atoms, steps)
        found.residual.square().sum().backward()
        return found

    def beyond(steps):
        x.grad = atoms.grad = None
        try:
            peak, found = peak_bytes(lambda: run(steps))
        except OSError:
            pytest.skip("this system does not tell a process its peak memory")
        assert found.codes.lengths.min() > 0.9 * steps
        return peak - sum(t.numel() * t.element_size() for t in (found.codes.values, found.codes.indices))

    beyond(8)
    few, many = min(beyond(8) for _ in range(3)), min(beyond(128) for _ in range(3))
    step = inputs * d_in * 4  # one residual; kept at each step they would be 480 MiB more
    assert many < few + 4 * step

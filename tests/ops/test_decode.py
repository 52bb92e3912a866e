import pytest
import torch

from mpsae.ops import decode
from mpsae.ops.decode import sum_gathered
from tests.test_codes import some_codes


@pytest.mark.parametrize("leading", [(), (6,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_decoding_is_the_product_with_the_dense_codes(leading, k):
    codes, atoms = some_codes(leading, k), torch.randn(7, 4)
    out = sum_gathered(codes.values, codes.indices, atoms)
    assert out.shape == (*leading, 4)
    torch.testing.assert_close(out, codes.dense() @ atoms)


def test_gradcheck():
    codes, atoms = some_codes(), torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    values = codes.values.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, a: sum_gathered(v, codes.indices, a), (values, atoms))
    assert torch.autograd.gradcheck(lambda v: sum_gathered(v, codes.indices, atoms.detach()), (values,))


def test_half_precision_atoms_are_summed_in_float32():
    codes, atoms = some_codes(), torch.randn(7, 4).bfloat16().requires_grad_()
    out = sum_gathered(codes.values, codes.indices, atoms)
    assert torch.equal(out, sum_gathered(codes.values, codes.indices, atoms.float()))
    out.sum().backward()
    assert atoms.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("mapped", ["codes", "atoms", "both"])
def test_vmap_equals_a_loop_gradients_too(mapped):
    codes = some_codes((3, 6) if mapped != "atoms" else (6,))
    values = codes.values.double().requires_grad_()
    atoms = torch.randn(*(() if mapped == "codes" else (3,)), 7, 4, dtype=torch.float64, requires_grad=True)
    dims = (None if mapped == "atoms" else 0, None if mapped == "atoms" else 0, None if mapped == "codes" else 0)
    together = torch.vmap(sum_gathered, in_dims=dims)(values, codes.indices, atoms)
    parts = [
        sum_gathered(*(t if dim is None else t[i] for t, dim in zip((values, codes.indices, atoms), dims, strict=True)))
        for i in range(3)
    ]
    torch.testing.assert_close(together, torch.stack(parts))
    ours = torch.autograd.grad(together.square().sum(), (values, atoms))
    theirs = torch.autograd.grad(sum(part.square().sum() for part in parts), (values, atoms))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_forward_mode_is_refused():
    codes, atoms = some_codes(), torch.randn(7, 4)
    with pytest.raises(NotImplementedError, match="reverse mode"):
        torch.func.jvp(lambda v: sum_gathered(v, codes.indices, atoms), (codes.values,), (codes.values,))


def test_opcheck():
    codes, atoms = some_codes((2, 6)), torch.randn(2, 7, 4, requires_grad=True)
    values = codes.values.requires_grad_()
    torch.library.opcheck(decode._sum_gathered, (values, codes.indices, atoms))
    grad = torch.randn(2, 6, 4)
    for wants_atoms in (True, False):
        arguments = (grad, values.detach(), codes.indices, atoms.detach(), wants_atoms)
        torch.library.opcheck(decode._sum_gathered_backward, arguments)

import pytest
import torch

from mpsae import pursue
from tests.ops.pursuit import audit


@pytest.mark.parametrize("rows", [300, pytest.param(10_000, marks=pytest.mark.slow)], ids=["300 rows", "10000 rows"])
@pytest.mark.parametrize("select", ["positive", "absolute"])
@pytest.mark.parametrize("name", audit.sizes())
def test_no_pick_breaks_the_promise_of_exact(name, select, rows):
    d_in, d_sae, k, coherent, own_rows = audit.sizes()[name]
    x, atoms = audit.problem(d_in, d_sae, coherent, own_rows or rows)
    codes = pursue(x, atoms, k, select=select, precision="exact").codes
    picks, bad, early = audit.violations(x, atoms, codes, select)
    assert picks >= 0.9 * codes.values.numel()
    assert (bad, early) == (0, 0)


def test_the_audit_sees_a_wrong_pick_and_a_wrong_value():
    x, atoms = audit.problem(64, 256, False, 50)
    codes = pursue(x, atoms, 8).codes
    codes.indices[7, 3] = (codes.indices[7, 3] + 1) % 256
    assert audit.violations(x, atoms, codes)[1] > 0
    codes = pursue(x, atoms, 8).codes
    codes.values[7, 7] *= 1.001
    assert audit.violations(x, atoms, codes)[1] > 0
    assert audit.violations(x, atoms, pursue(x, atoms, 8).codes.prefix(4))[1:] == (0, 0)


def test_exact_holds_whatever_precision_the_program_allows_and_under_autocast():
    x, atoms = audit.problem(128, 1024, False, 200)
    plain = pursue(x, atoms, 32)
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = pursue(x, atoms, 32)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(allowed)
    assert audit.violations(x, atoms, found.codes)[1:] == (0, 0)
    assert found.residual.dtype == torch.float32
    torch.testing.assert_close(found.residual, plain.residual, rtol=0, atol=0)

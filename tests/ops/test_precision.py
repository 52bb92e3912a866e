import pytest
import torch

from mpsae.ops.precision import multiplying

CPU = torch.device("cpu")


@pytest.fixture
def matmul():
    """The setting for multiplying on the CPU, put back afterwards."""
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    yield setting
    setting.fp32_precision = before


def test_exact_is_ieee_inside_and_the_setting_is_put_back_even_after_an_error(matmul):
    matmul.fp32_precision = "bf16"
    with multiplying(CPU, "exact"):
        assert matmul.fp32_precision == "ieee"
    assert matmul.fp32_precision == "bf16"
    with pytest.raises(ZeroDivisionError), multiplying(CPU, "exact"):
        _ = 1 / 0
    assert matmul.fp32_precision == "bf16"


def test_fast_is_as_torch_is_set(matmul):
    matmul.fp32_precision = "bf16"
    with multiplying(CPU, "fast"):
        assert matmul.fp32_precision == "bf16"


def test_what_was_inherited_goes_on_following_the_setting_for_all_of_torch(matmul):
    matmul.fp32_precision = "none"
    everywhere = torch.backends.fp32_precision
    try:
        torch.backends.fp32_precision = "tf32"
        with multiplying(CPU, "exact"):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = everywhere


def test_a_thread_that_leaves_takes_nothing_from_one_that_is_inside(matmul):
    matmul.fp32_precision = "bf16"
    first, second = multiplying(CPU, "exact"), multiplying(CPU, "exact")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert matmul.fp32_precision == "ieee"
    second.__exit__(None, None, None)
    assert matmul.fp32_precision == "bf16"


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_autocast_is_off_inside(precision):
    a = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with multiplying(CPU, precision):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16

import pytest
import torch

from mpsae.ops.precision import products

CPU = torch.device("cpu")


@pytest.fixture
def matmul():
    """The setting for products on the CPU, put back afterwards."""
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    yield setting
    setting.fp32_precision = before


def test_exact_is_ieee_inside_and_the_setting_is_put_back_even_after_an_error(matmul):
    matmul.fp32_precision = "bf16"
    with products(CPU, "exact"):
        assert matmul.fp32_precision == "ieee"
    assert matmul.fp32_precision == "bf16"
    with pytest.raises(ZeroDivisionError), products(CPU, "exact"):
        _ = 1 / 0
    assert matmul.fp32_precision == "bf16"


def test_fast_is_as_torch_is_set(matmul):
    matmul.fp32_precision = "bf16"
    with products(CPU, "fast"):
        assert matmul.fp32_precision == "bf16"


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_autocast_is_off_inside(precision):
    a = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with products(CPU, precision):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16

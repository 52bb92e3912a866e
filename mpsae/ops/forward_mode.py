"""Forward-mode derivatives, which torch's custom operators would silently give as 0."""

from __future__ import annotations

from torch import Tensor
from torch.autograd import forward_ad


def refuse_forward_mode(name: str, *tensors: Tensor) -> None:
    """Raise if any of the tensors carries a tangent."""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            f"{name} has no forward-mode derivative (jvp, jacfwd): use reverse mode, backward() or "
            "torch.autograd.functional.jacobian"
        )

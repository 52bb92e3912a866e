"""Adam for one SAE or for many as one program, told by a flag on the device which of them this update counts for."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from mpsae.ops.pursuit import widest

Decay = Literal["l2", "decoupled"]


class GatedAdam:
    """Adam (`"l2"`: weight decay is part of the gradient) and AdamW (`"decoupled"`: it shrinks the weights themselves).

    What torch's optimisers cannot do: leave parameters and moments of some runs of a stack exactly as they are, and
    never wait for the device to learn which. `runs` is None for a single SAE.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        decay: Decay,
        runs: int | None = None,
        eps: float = 1e-8,
    ) -> None:
        self.parameters = parameters
        self.betas, self.weight_decay, self.decay, self.eps = betas, weight_decay, decay, eps
        device = next(iter(parameters.values())).device
        self.steps = torch.zeros(() if runs is None else (runs,), dtype=torch.int64, device=device)
        self.first = {name: torch.zeros_like(p, dtype=widest(p)) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p, dtype=widest(p)) for name, p in parameters.items()}

    def gradient_norm(self) -> Tensor:
        """The norm of the whole gradient: one number, or one a run."""
        lead = self.steps.ndim
        gradients = [p.grad.flatten(lead) for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(g, dim=-1, dtype=widest(g)) for g in gradients])
        return torch.linalg.vector_norm(norms, dim=0)

    @torch.no_grad()
    def step(self, rate: float, counts: Tensor, scale: Tensor) -> None:
        """One update at this learning rate, of gradients times `scale`, where `counts`; elsewhere nothing changes.

        Nothing changes to the bit: there the gradient is 0, both moments are mixed with it at weight 0, and what is
        subtracted is a moment over ∞.
        """
        beta1, beta2 = self.betas
        steps = (self.steps + 1).to(torch.float64)
        size = rate / (1 - beta1**steps) * counts  # of the step; 0 where it does not count
        spread = (1 - beta2**steps).sqrt()
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue

            def broad(numbers: Tensor, like: Tensor = parameter) -> Tensor:
                numbers = numbers if numbers.dtype == torch.bool else numbers.to(widest(like))
                return numbers.reshape((*numbers.shape, *[1] * (like.ndim - numbers.ndim)))

            wide = parameter.to(widest(parameter))  # the parameter itself, unless it is of half precision
            gradient = (parameter.grad.to(wide.dtype) * broad(scale)).where(broad(counts), 0.0)
            if self.decay == "l2" and self.weight_decay:
                gradient.addcmul_(wide, broad(counts).to(wide.dtype), value=self.weight_decay)
            first, second = self.first[name], self.second[name]
            first.lerp_(gradient, broad((1 - beta1) * counts))
            second.mul_(broad(1 - (1 - beta2) * counts.double())).addcmul_(gradient, gradient, value=1 - beta2)
            # (√second / spread + ε) / size, which is ∞ where the step does not count
            denominator = second.sqrt().mul_(broad(1 / spread / size)).add_(broad(self.eps / size))
            denominator = denominator.where(broad(counts), torch.inf)
            if self.decay == "decoupled" and self.weight_decay:
                wide.mul_(broad(1 - rate * self.weight_decay * counts.double()))
            wide.addcdiv_(first, denominator, value=-1.0)
            if wide is not parameter:
                parameter.copy_(wide)
        self.steps.add_(counts)

    @torch.no_grad()
    def clear_(self, names: tuple[str, ...], mask: Tensor) -> None:
        """Forget the moments of the atoms in `mask` [d_sae] or [R, d_sae], of parameters with a row an atom."""
        for name in names:
            for moments in (self.first[name], self.second[name]):
                moments.masked_fill_(mask.reshape(*mask.shape, *[1] * (moments.ndim - mask.ndim)), 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on."""
        return {
            "steps": self.steps,
            **{f"first.{name}": moment for name, moment in self.first.items()},
            **{f"second.{name}": moment for name, moment in self.second.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        own = self.state_dict()
        if state.keys() != own.keys():
            raise ValueError(
                f"this optimiser state is of {sorted(state)}, not of {sorted(own)}: use that of the same SAE"
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])

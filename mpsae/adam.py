"""Adam for one SAE or for many as one program, told by a flag on the device which of them this update counts for."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

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
        self.first = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}

    def gradient_norm(self) -> Tensor:
        """The norm of the whole gradient: one number, or one a run."""
        squares = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                squares.append(parameter.grad.float().square().reshape(*self.steps.shape, -1).sum(-1))
        return torch.stack(squares).sum(0).sqrt()

    @torch.no_grad()
    def step(self, rate: float, counts: Tensor, scale: Tensor) -> None:
        """One update at this learning rate, of gradients times `scale`, where `counts`; elsewhere nothing changes."""
        beta1, beta2 = self.betas
        steps = self.steps + 1
        correction1 = 1 - beta1 ** steps.to(torch.float64)
        correction2 = (1 - beta2 ** steps.to(torch.float64)).sqrt()
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue

            def broad(numbers: Tensor, like: Tensor = parameter) -> Tensor:
                return numbers.reshape((*numbers.shape, *[1] * (like.ndim - numbers.ndim)))

            gradient = parameter.grad.float() * broad(scale).float()
            old = parameter.float()
            if self.decay == "l2" and self.weight_decay:
                gradient = gradient + self.weight_decay * old
            first = self.first[name].lerp(gradient, 1 - beta1)
            second = beta2 * self.second[name] + (1 - beta2) * gradient.square()
            denominator = second.sqrt() / broad(correction2).float() + self.eps
            kept = 1 - rate * self.weight_decay if self.decay == "decoupled" else 1.0
            new = kept * old - rate / broad(correction1).float() * first / denominator
            counted = broad(counts)
            parameter.copy_(new.where(counted, old))
            self.first[name].copy_(first.where(counted, self.first[name]))
            self.second[name].copy_(second.where(counted, self.second[name]))
        self.steps.copy_(steps.where(counts, self.steps))

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

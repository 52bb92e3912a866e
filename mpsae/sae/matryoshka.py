"""Matryoshka (Bussmann et al. 2025; Zaigrajew et al. 2025): already the first atoms alone must reconstruct."""

from __future__ import annotations

from itertools import pairwise
from numbers import Integral
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from mpsae.checks import number, one_of, option, whole
from mpsae.sae import losses
from mpsae.sae.batchtopk import above, batch_largest, next_threshold, share, wanted_l0
from mpsae.sae.contract import Output, Shared
from mpsae.sae.controllers import Steering
from mpsae.sae.draws import advanced, uniform
from mpsae.sae.linear import LinearSAE

Activation = Literal["batchtopk", "relu"]
Reduce = Literal["sum", "mean"]
PARETO_POWER = 0.5


class MatryoshkaSAE(LinearSAE):
    """Nested sub-dictionaries, each with a loss of its own; activations of BatchTopK, or ReLU with an ℓ1 penalty.

    >>> MatryoshkaSAE(768, 19200, l0=32, nested=(1200, 2400, 4800, 9600, 19200))
    >>> MatryoshkaSAE(20, 20, l0=1.36, activation="relu", nested=5, sort_every=1, reduce="mean")    # synthetic study

    `nested` are the sizes; a number means that so many are drawn for every batch, from a Pareto law of power ½, the
    whole dictionary always among them. With `sort_every`, after so many updates atoms are ranked anew by the energy of
    what they write (a running mean): ranks decide which atoms come first, no row moves. `reduce` sums the nested
    losses, as the text of the MP-SAE paper, or averages them, as its code.
    """

    kind = "matryoshka"
    scheduled = ("l0",)
    options = LinearSAE.options | {"steering": Steering}
    l1_weight: Tensor
    threshold: Tensor
    rank: Tensor
    energy: Tensor
    drawn: Tensor

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        l0: float,
        *,
        nested: int | tuple[int, ...] | list[int] = 5,
        activation: Activation = "batchtopk",
        reduce: Reduce = "sum",
        sort_every: int = 0,
        decay: float = 0.99,
        l1: float = 0.1,
        steering: Steering | None = None,
        centred: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(d_in, d_sae, centred=centred, **shared)
        self.l0, self.l1 = wanted_l0(l0, d_sae), number("l1", l1)
        if activation == "relu" and not self.l1:
            raise ValueError("l1 is where the steered weight starts, and 0 stays 0: give a number above 0")
        self.nested = _nested(nested, d_sae)
        self.activation: Activation = one_of("activation", activation, get_args(Activation))
        self.reduce: Reduce = one_of("reduce", reduce, get_args(Reduce))
        self.sort_every, self.decay = whole("sort_every", sort_every, 0), share("decay", decay)
        if steering is not None and activation != "relu":
            raise ValueError('steering is of the ℓ1 penalty: it goes with activation="relu", or leave it out')
        self.steering = option("steering", steering, Steering) or (Steering() if activation == "relu" else None)
        self.register_buffer("l1_weight", torch.tensor(self.l1))
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("rank", torch.arange(d_sae))  # of each atom; the first come first
        self.register_buffer("energy", torch.zeros(d_sae))
        self.register_buffer("drawn", torch.tensor(self.seed % 2**63))  # state of the draws of sizes

    def _activate(self, pre: Tensor) -> Tensor:
        if self.activation == "relu":
            return pre.relu()
        return batch_largest(pre, self.l0) if self.training else above(pre, self.threshold)

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        terms = super().losses(x, output)
        if self.activation == "relu":
            assert isinstance(output.acts, Tensor)
            weight = self.l1_weight * (1.0 if self.steering is None else self.steering.share(self.updates))
            penalties = torch.stack([losses.l1(output.acts * mask, self.dictionary) for mask in self._prefixes()])
            terms["l1"] = weight * self._reduced(penalties)
        return terms

    def _reconstruction(self, x: Tensor, output: Output, residual: Tensor) -> Tensor:
        """The errors of all nested sub-dictionaries, summed or averaged; the last is that of the whole."""
        assert isinstance(output.acts, Tensor)
        acts, atoms = self._wide(output.acts, self.dictionary)
        errors = [losses.squared_error(residual)]
        # From the whole inwards: what the atoms between two sizes write is given back to the residual.
        if isinstance(self.nested, tuple) and not self.sort_every:  # each atom is multiplied once
            for inner, outer in reversed(list(pairwise(self.nested))):
                residual = residual + acts[..., inner:outer] @ atoms[inner:outer]
                errors.append(losses.squared_error(residual))
        else:
            for inner, outer in reversed(list(pairwise(self._prefixes()))):
                residual = residual + (acts * (outer & ~inner)) @ atoms
                errors.append(losses.squared_error(residual))
        return self._reduced(torch.stack(errors))

    def _reduced(self, terms: Tensor) -> Tensor:
        return terms.sum() if self.reduce == "sum" else terms.mean()

    def _prefixes(self) -> list[Tensor]:
        """Which atoms belong to each nested sub-dictionary [d_sae], from the smallest to the whole."""
        if isinstance(self.nested, tuple):
            return [self.rank < size for size in self.nested]
        return [self.rank < size for size in drawn_sizes(self.drawn, self.nested, self.d_sae)]

    @torch.no_grad()
    def update_(self, x: Tensor, output: Output) -> Tensor | None:
        assert isinstance(output.acts, Tensor)
        if self.steering is not None:
            l0 = losses.mean_l0(output.acts)
            self.l1_weight.copy_(self.steering.next_weight(self.l1_weight, l0, self.l0, self.updates))
        else:
            self.threshold.copy_(next_threshold(self.threshold, output.acts, self.decay, self.updates))
        if isinstance(self.nested, int):
            self.drawn.copy_(advanced(self.drawn, self.d_sae))
        if self.sort_every:
            written = output.acts.square().nan_to_num(0.0, posinf=0.0).reshape(-1, self.d_sae).mean(0)
            written = written * self.atoms.square().sum(-1)
            self.energy.mul_(self.decay).add_((1 - self.decay) * written)
            if (self.updates + 1) % self.sort_every == 0:
                order = self.energy.argsort(descending=True, stable=True)
                self.rank.copy_(order.argsort())
        return super().update_(x, output)

    def _renew_(self, mask: Tensor, directions: Tensor) -> None:
        super()._renew_(mask, directions)
        self.energy.masked_fill_(mask, 0.0)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        super()._fold_(shift, scale)
        self.threshold.div_(scale)
        self.energy.div_(scale.square())
        self.l1_weight.div_(scale)
        self.l1 /= float(scale)


def drawn_sizes(state: Tensor, count: int, d_sae: int) -> list[Tensor]:
    """`count` different sizes up to d_sae, in order, the last d_sae itself: the others from P(≤ n) ∝ 1 − (n + 1)^−½."""
    size = torch.arange(1, d_sae, device=state.device, dtype=torch.float64)
    probability = size**-PARETO_POWER - (size + 1) ** -PARETO_POWER
    # Without replacement: the largest of log p plus Gumbel noise.
    noise = -(-uniform(state, d_sae)[: d_sae - 1].log()).log()
    chosen = (probability.log() + noise).topk(count - 1).indices + 1
    return [*chosen.sort().values.unbind(), torch.full_like(state, d_sae)]


def _nested(nested: int | tuple[int, ...] | list[int], d_sae: int) -> int | tuple[int, ...]:
    if isinstance(nested, Integral):
        nested = int(nested)
        if whole("nested", nested, 1) > d_sae:
            raise ValueError(f"nested draws that many different sizes up to {d_sae}; got {nested}")
        return nested
    if not isinstance(nested, tuple | list):
        raise ValueError(f"nested must be a number of sizes, or the sizes; got {nested!r}")
    sizes = tuple(whole("a size in nested", size, 1) for size in nested)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[-1] != d_sae:
        raise ValueError(f"nested sizes rise and end with the whole dictionary, {d_sae}; got {sizes}")
    return sizes

"""Data whose answer is known: the concept tree of the MP-SAE paper (Costa et al., NeurIPS 2025, §4.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Tree:
    """20 concepts in R²⁰: 11 parents that exclude each other, three of them with 3 children that exclude each other.

    >>> tree = Tree(similarity=0.2, seed=0)
    >>> x, z = tree.sample(1000, torch.Generator().manual_seed(1))   # x = z @ tree.atoms, [1000, 20] each

    Concepts of one level and one parent have cosine `similarity`, all others are orthogonal. A parent with children
    fires in a fifth of the inputs, each of its children in a fifth of those; a parent without in a twentieth.
    Magnitudes are N(1.5, 0.25²).
    """

    d_in = 20
    inner = (0, 4, 8)
    """Parents with children; each one's children are the three concepts after it."""
    parents = (0, 4, 8, *range(12, 20))
    siblings = ((1, 2, 3), (5, 6, 7), (9, 10, 11))
    children = frozenset(range(12)) - frozenset(inner)
    parent_probabilities = (0.2,) * 3 + (0.05,) * 8
    child_probability = 0.2
    mean, std = 1.5, 0.25

    def __init__(self, similarity: float = 0.0, seed: int = 0) -> None:
        if not 0 <= similarity < 1:
            raise ValueError(f"similarity is the cosine of concepts of one level, in [0, 1); got {similarity!r}")
        self.similarity = similarity
        generator = torch.Generator().manual_seed(seed)
        axes = torch.linalg.qr(torch.randn(20, 20, generator=generator, dtype=torch.float64)).Q
        self.atoms = axes.clone()  # [20, 20], a row a concept
        for group in (self.parents, *self.siblings):
            self.atoms[list(group)] = _tilted(axes[list(group)], similarity)
        self.atoms = self.atoms.float()

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` inputs x and what they are made of, z; [count, 20] each."""
        parent = torch.multinomial(torch.tensor(self.parent_probabilities), count, True, generator=generator)
        parent = torch.tensor(self.parents)[parent]  # [count]
        child = 1 + (torch.rand(count, generator=generator) / self.child_probability).long()  # 1 … 5
        has_child = torch.isin(parent, torch.tensor(self.inner)) & (child <= 3)
        values = self.mean + self.std * torch.randn(count, 2, generator=generator)
        z = torch.zeros(count, 20)
        z.scatter_(1, parent[:, None], values[:, :1])
        z.scatter_add_(1, (parent + child * has_child)[:, None], values[:, 1:] * has_child[:, None])
        return z @ self.atoms, z


def _tilted(axes: Tensor, cosine: float) -> Tensor:
    """Unit vectors near the orthonormal rows of `axes` [n, d], every two of them at `cosine`."""
    # q_i + u Σ_{j≠i} q_j has the cosine (2u + (n−2) u²) / (1 + (n−1) u²) with the others: solve for the smaller u.
    n = len(axes)
    u = cosine / (1 + math.sqrt(1 + cosine * (n - 2 - cosine * (n - 1))))
    return torch.nn.functional.normalize((1 - u) * axes + u * axes.sum(0), dim=-1)

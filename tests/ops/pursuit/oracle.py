"""Matching pursuit in numpy, float64, one input at a time: written from the paper, not from our code."""

import numpy as np

EPS = np.finfo(np.float64).eps


def pursue(x, atoms, steps, select="positive", residual=0.0, relative=0.0, coefficient=0.0, cosine=0.0, repeat=False):
    """Picks (index, value) of one input, and the residuals r_0 … r_K."""
    start, r = np.linalg.norm(x), x.copy()
    picks, residuals = [], [x.copy()]
    while len(picks) < steps:
        norm = np.linalg.norm(r)
        if norm < residual or norm < relative * start:
            break
        correlations = np.array([atom @ r for atom in atoms])
        score = np.abs(correlations) if select == "absolute" else correlations
        best = int(np.argmax(score))
        value = correlations[best]
        size = value if select == "positive" else abs(value)
        if not size > max(coefficient, 16 * EPS * start) or size < cosine * norm:
            break
        seen = best in [index for index, _ in picks]
        picks.append((best, value))
        r = r - value * atoms[best]
        residuals.append(r.copy())
        if repeat and seen:
            break
    return picks, residuals


def gradients(picks, residuals, atoms, grad_values, grad_residual):
    """∂L/∂x and ∂L/∂atoms by the chain rule over stored residuals and explicit Jacobians."""
    grad, grad_atoms = grad_residual.copy(), np.zeros_like(atoms)
    eye = np.eye(atoms.shape[1])
    for t in reversed(range(len(picks))):
        index, value = picks[t]
        d, r = atoms[index], residuals[t]
        # r' = r − (d·r) d: ∂r'/∂r = I − d dᵀ, ∂r'/∂d = −(d·r) I − d rᵀ; z = d·r: ∂z/∂r = d, ∂z/∂d = r.
        grad_atoms[index] += (-value * eye - np.outer(d, r)).T @ grad + grad_values[t] * r
        grad = (eye - np.outer(d, d)).T @ grad + grad_values[t] * d
    return grad, grad_atoms

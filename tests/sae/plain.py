"""The SAEs once more, written from the formulas of their papers and not from our code: values, losses, gradients.

One function an SAE, from a dict of leaf tensors W [p, m], c [p], D [p, m], b [m] (and what it has of its own) and a
batch x [n, m] to (x̂, loss). `learn` trains them with a plain loop.
"""

import math

import torch
from torch.nn.functional import normalize


def start(p, m, seed, **more):
    generator = torch.Generator().manual_seed(seed)
    rows = normalize(torch.randn(p, m, generator=generator), dim=-1)
    tensors = {"W": rows.clone(), "c": torch.zeros(p), "D": rows.clone(), "b": torch.zeros(m)} | more
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def pre(t, x):
    return torch.einsum("pm,nm->np", t["W"], x - t["b"]) + t["c"]


def error(x, x_hat):
    return ((x - x_hat) ** 2).sum() / len(x)


def relu(t, x, l1):
    z = torch.clamp(pre(t, x), min=0)
    x_hat = z @ t["D"] + t["b"]
    penalty = (z * t["D"].pow(2).sum(1).sqrt()).sum() / len(x)
    return x_hat, error(x, x_hat) + l1 * penalty


def topk(t, x, k, multi=0.0):
    p = torch.clamp(pre(t, x), min=0)

    def keep(count):
        bound = p.sort(dim=1, descending=True).values[:, count - 1 : count]
        return torch.where(p >= bound, p, 0.0) @ t["D"] + t["b"]

    return keep(k), error(x, keep(k)) + (multi * error(x, keep(4 * k)) if multi else 0)


def batch_keep(p, l0):
    bound = p.flatten().sort(descending=True).values[int(l0 * len(p))]
    return torch.where(p >= bound, p, 0.0)


def batchtopk(t, x, l0):
    z = batch_keep(torch.clamp(pre(t, x), min=0), l0)
    x_hat = z @ t["D"] + t["b"]
    return x_hat, error(x, x_hat)


class Jump(torch.autograd.Function):
    """(p · H(p − θ), H(p − θ)) with the pseudo-derivatives of the JumpReLU paper's appendix."""

    @staticmethod
    def forward(ctx, p, theta, epsilon):
        ctx.save_for_backward(p, theta)
        ctx.epsilon = epsilon
        gate = (p > theta).to(p.dtype)
        return p * gate, gate

    @staticmethod
    def backward(ctx, grad_z, grad_gate):
        p, theta = ctx.saved_tensors
        kernel = ((p - theta) / ctx.epsilon).abs() < 0.5
        grad_theta = -(theta / ctx.epsilon) * kernel * grad_z - (1 / ctx.epsilon) * kernel * grad_gate
        return (p > theta) * grad_z, grad_theta.sum(0), None


def jumprelu(t, x, l0, weight, epsilon):
    z, gate = Jump.apply(torch.clamp(pre(t, x), min=0), t["log_theta"].exp(), epsilon)
    x_hat = z @ t["D"] + t["b"]
    return x_hat, error(x, x_hat) + weight * (gate.sum() / len(x) / l0 - 1) ** 2


def matryoshka(t, x, l0, sizes, reduce, l1=None):
    p = torch.clamp(pre(t, x), min=0)
    z = p if l1 is not None else batch_keep(p, l0)
    terms = []
    for size in sizes:
        x_hat = z[:, :size] @ t["D"][:size] + t["b"]
        norms = t["D"][:size].pow(2).sum(1).sqrt()
        terms.append(error(x, x_hat) + (0 if l1 is None else l1 * (z[:, :size] * norms).sum() / len(x)))
    return x_hat, sum(terms) / (len(terms) if reduce == "mean" else 1)


def omp(t, x, k):
    with torch.no_grad():
        picks, rest = [], x - t["b"]
        rows = torch.arange(len(x))
        for _ in range(k):
            picks.append((rest @ t["D"].T).argmax(1))
            atoms = t["D"][torch.stack(picks, 1)]  # [n, t, m]
            z = torch.linalg.lstsq(atoms.mT, (x - t["b"])[:, :, None]).solution
            rest = x - t["b"] - (atoms.mT @ z)[:, :, 0]
        assert len(rows) == len(x)
    atoms = t["D"][torch.stack(picks, 1)]
    z = torch.linalg.solve(atoms @ atoms.mT, atoms @ (x - t["b"])[:, :, None])
    x_hat = (atoms.mT @ z)[:, :, 0] + t["b"]
    return x_hat, error(x, x_hat)


def planted(seed):
    """256 atoms in R⁶⁴ and a function that draws inputs: five atoms each (repeats allowed), magnitudes in [1, 2]."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1))
    atoms = normalize(torch.randn(256, 64, generator=generator), dim=-1)

    def draw(count):
        picks = torch.randint(256, (count, 5), generator=generator)
        values = 1 + torch.rand(count, 5, generator=generator)
        return (atoms[picks] * values[:, :, None]).sum(1)

    return atoms, draw


def rate(update, updates=6000):
    """Adam's 1e-3, the last third falling to 0."""
    return 1e-3 * min(1.0, (updates - update) / (updates / 3))


def recovery(learned, truth):
    """Mean |cosine| after one-to-one matching."""
    from scipy.optimize import linear_sum_assignment

    cosines = (normalize(learned.detach(), dim=-1) @ truth.T).abs().numpy()
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    return float(cosines[rows, columns].mean())


def learn(function, seed, updates=6000, steer=None, **more):
    """Train a plain SAE on the planted dictionary; returns (recovery, unexplained energy, tensors)."""
    truth, draw = planted(seed)
    t = start(256, 64, seed, **more)
    optimizer = torch.optim.Adam(t.values())
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate(update, updates)
        x = draw(256)
        _, loss = function(t, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            t["D"].copy_(normalize(t["D"], dim=-1))
            if steer is not None:
                steer(t, x)
    x = draw(4096)
    with torch.no_grad():
        left = ((x - function(t, x)[0]) ** 2).sum() / (x**2).sum()
    return recovery(t["D"], truth), float(left), t


def log_theta(value=0.1, p=256):
    return torch.full((p,), math.log(value))


NAMES = {"encoder": "W", "encoder_bias": "c", "atoms": "D", "bias": "b", "log_threshold": "log_theta"}


def assert_equal(sae, function, rows=40):
    """x̂, the loss and every gradient of our SAE are those of the plain one, from parameters that are all different."""
    sae = sae.double().train()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    x = torch.randn(rows, sae.d_in, generator=generator, dtype=torch.float64)
    tensors = {NAMES[name]: p.detach().clone().requires_grad_() for name, p in sae.named_parameters()}
    x_hat, loss = function(tensors, x)
    output = sae(x)
    torch.testing.assert_close(output.x_hat, x_hat)
    ours = sum(sae.losses(x, output).values())
    torch.testing.assert_close(ours, loss)
    gradients = torch.autograd.grad(loss, list(tensors.values()))
    for name, mine, other in zip(tensors, torch.autograd.grad(ours, list(sae.parameters())), gradients, strict=True):
        assert other.abs().sum() > 0, f"{name} gets no gradient, so it shows nothing"
        torch.testing.assert_close(mine, other)

"""The main job in a minute: learn a hierarchy whose answer is known, and show what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import mpsae
from mpsae import files, plots, report
from mpsae.checks import whole
from mpsae.data.data import Data
from mpsae.data.synthetic import Tree
from mpsae.ops.pursuit import Stop
from mpsae.sae.contract import SAE
from mpsae.sae.matching_pursuit import MatchingPursuitSAE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 200
HELD_OUT = 10_000


def write(out: Path, *, updates: int = 15_000, similarity: float = 0.2, seed: int = 0) -> Path:
    """Train on the paper's tree, write the SAE and a report under `out`; returns the report's path."""
    whole("updates", updates, 1)
    tree = Tree(similarity, seed)
    # The settings of the paper's synthetic study: norms are free, for at this learning rate a projection after every
    # update hurts, and they end at 1 by themselves; 21 picks are one more than there are concepts.
    sae = MatchingPursuitSAE(20, 20, Stop(21, residual=0.05, repeat=True), constraint="free", bias=False, seed=seed)
    files.make_folder(out)
    with _one_thread():
        seconds = train_(sae, Data(tree), updates, seed)
    sae.save(out / "sae")
    path = out / "report.html"
    command = f"mpsae demo --out {out} --updates {updates} --similarity {similarity:g} --seed {seed}"
    files.write(path, show(sae.eval(), tree, f"{command}: {seconds:.0f} s on one thread", out / "sae").encode())
    return path


@contextmanager
def _one_thread() -> Iterator[None]:
    """For tensors this small a second thread brings nothing, and on a busy machine it waits for its turn for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_(sae: SAE, data: Data, updates: int, seed: int) -> float:
    """The whole of training, in the open; returns the seconds it took."""
    optimizer = torch.optim.Adam(sae.parameters(), lr=3e-2, betas=(0.5, 0.9375))
    began = time.perf_counter()
    with Progress(
        TextColumn("training"), BarColumn(), TextColumn("{task.completed}/{task.total} updates"),
        TimeRemainingColumn(), TextColumn("R² {task.fields[r2]:.4f} · {task.fields[picks]:.2f} picks an input"),
    ) as progress:  # fmt: skip
        bar = progress.add_task("training", total=updates, r2=0.0, picks=0.0)
        for update, (x, _, _) in enumerate(islice(data.stream(BATCH, seed=seed), updates)):
            for group in optimizer.param_groups:
                group["lr"] = 3e-2 * rate(update, updates)
            out = sae(x)
            optimizer.zero_grad()
            sum(sae.losses(x, out).values(), torch.zeros(())).backward()
            torch.nn.utils.clip_grad_norm_(sae.parameters(), 1.0)
            optimizer.step()
            sae.update_(x, out)
            if update % 100 == 99 or update + 1 == updates:
                picks = out.codes.lengths.float().mean().item()
                r2 = r_squared(x, out.residual.detach())
                progress.update(bar, completed=update + 1, r2=r2, picks=picks)
                if not progress.console.is_terminal and (update + 1) % 1000 == 0:
                    print(f"{update + 1} of {updates} updates: R² {r2:.4f}, {picks:.2f} picks an input", flush=True)
    return time.perf_counter() - began


def rate(update: int, updates: int) -> float:
    """The learning rate's share: up over 100 updates, constant, then down over the last fifth to a tenth."""
    left = (updates - update) / (0.2 * updates)
    return min((update + 1) / 100, 1.0) * min(0.1 + 0.9 * left, 1.0)


def r_squared(x: Tensor, residual: Tensor) -> float:
    """1 − Σ‖x − x̂‖² / Σ‖x − mean‖²."""
    return 1 - (residual.square().sum() / (x - x.mean(0)).square().sum()).item()


@torch.no_grad()
def show(sae: MatchingPursuitSAE, tree: Tree, command: str, folder: Path) -> str:
    """The report: what was learned beside the truth; `command` made the SAE that lies in `folder`."""
    x, _, labels = next(Data(tree).once(HELD_OUT, count=HELD_OUT))
    assert labels is not None
    z = labels["z"]
    learned = torch.nn.functional.normalize(sae.atoms, dim=-1)
    # Which atom is which concept: the one-to-one matching of the largest total cosine.
    order = torch.tensor(linear_sum_assignment(tree.atoms @ learned.T, maximize=True)[1])
    learned = learned[order]
    found = int(((tree.atoms * learned).sum(-1) > 0.99).sum())
    true_gram, gram = tree.atoms @ tree.atoms.T, learned @ learned.T
    codes = sae.encode(x)
    r2 = r_squared(x, x - sae.decode(codes))
    longest = max(int(codes.lengths.max()), 1)
    unexplained = [1 - r_squared(x, x)] + [1 - r_squared(x, sae.at(k=k)(x).residual) for k in range(1, longest + 1)]
    used, active = codes.l0(), (z != 0).sum(-1)

    sections = [
        report.Section(
            "The tree that was learned",
            "Cosines between all pairs of concepts: the truth, and the atoms of the SAE, matched to it one to one. "
            "Concepts of one level may resemble each other; a parent and its children, and different levels, are "
            "orthogonal. Lines part the three families and the eight parents without children.",
            _drawn(lambda: plots.grams({"truth": true_gram.numpy(), "learned": gram.numpy()}, (4, 8, 12))),
            f"Two matrices of cosines; {found} of 20 learned atoms equal a true concept",
        ),
        report.Section(
            "Sparsity is chosen at inference",
            "The same SAE read with k picks, on inputs it never saw: the error falls with every pick, and each input "
            "ends by itself once it is explained. (With no pick it is above 1: this SAE has no bias, so it starts "
            "from 0 rather than from the mean.)",
            _drawn(lambda: plots.error_against_k(unexplained, _shares(used), _shares(active))),
            "Unexplained variance against the number of picks; shares of inputs by number of concepts",
        ),
        report.Section(
            "One input, step by step",
            "The atom most correlated with what is left is picked (orange) and its part taken away; then the next. "
            "Green marks show the concepts that the input was made of.",
            _drawn(lambda: _one_pursuit(sae, order, x, z)),
            "Correlations of all atoms with the residual, a panel for each step of one pursuit",
        ),
        report.Section(
            "How this was made",
            table=[
                ("data", f"the paper's tree of 20 concepts, cosine {tree.similarity:g} within a level"),
                ("SAE", f"{type(sae).__name__}, 20 atoms, {sae.stop}"),
                ("training", f"{sae.updates:,} updates of {BATCH} inputs, one seed"),
                ("command", command),
                ("judged on", f"{HELD_OUT:,} inputs drawn after training"),
                ("versions", f"mpsae {mpsae.__version__}, torch {torch.__version__}"),
            ],
            code=f'import mpsae\n\nsae = mpsae.load("{folder}")\ncodes = sae.encode(x)  # x [..., 20]\n'
            "codes.indices, codes.values, codes.lengths",
        ),
    ]
    absorbed = torch.stack([gram[p, list(c)].abs() for p, c in zip(tree.inner, tree.siblings, strict=True)])
    return report.page(
        "A hierarchy, found again",
        "An MP-SAE was trained on inputs made of a parent concept and, at times, one of its children. It was shown the "
        "inputs alone. This page compares what it learned with the tree they came from.",
        [
            (f"{found} of 20", "concepts found (cosine above 0.99)"),
            (f"{r2:.4f}", "R² on new inputs"),
            (f"{used.float().mean():.2f} / {active.float().mean():.2f}", "picks an input / true concepts"),
            (f"{absorbed.mean():.4f}", "mean |cosine| of parents with their children (truth: 0)"),
        ],
        sections,
    )


def _one_pursuit(sae: SAE, order: Tensor, x: Tensor, z: Tensor) -> Figure:
    """The first input that is made of a parent and a child, one pick at a time."""
    row = int(((z != 0).sum(-1) == 2).nonzero()[0])
    codes = sae.encode(x[row])
    steps = int(codes.lengths)
    left = torch.stack([x[row] - sae.decode(codes.prefix(t)) for t in range(steps + 1)])  # [steps + 1, 20]
    concept = torch.argsort(order)  # of each atom
    return plots.pursuit_steps(
        (left @ sae.atoms[order].T).numpy(),
        concept[codes.indices[:steps]].tolist(),
        left.norm(dim=-1).tolist(),
        z[row].nonzero().flatten().tolist(),
        [f"child {i}" if i in Tree.children else f"parent {i}" for i in range(20)],
    )


def _drawn(draw: Callable[[], Figure]) -> str | None:
    return None if plots.missing() else plots.svg(draw())


def _shares(counts: Tensor) -> list[float]:
    return (torch.bincount(counts.long()) / len(counts)).tolist()

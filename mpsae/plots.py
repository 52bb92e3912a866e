"""Figures, drawn with matplotlib (the extra `plots`); the only module that imports it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8A8F98"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "mpsae",
}


def missing() -> str:
    """Why no figure can be drawn, as a line that says the remedy; empty where they can."""
    return "" if find_spec("matplotlib") else "figures need matplotlib: pip install 'mpsae[plots]'"


@contextmanager
def _canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes, in the one style; sizes in inches."""
    if missing():
        raise ImportError(missing())
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        yield figure, figure.subplots(rows, columns, **options)


def svg(figure: Figure) -> str:
    """The figure as SVG text, the same for the same figure."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def grams(matrices: dict[str, np.ndarray], blocks: Sequence[int]) -> Figure:
    """Matrices of cosines side by side; `blocks` are the indices at which a new family of concepts begins."""
    with _canvas(1, len(matrices), 3.1 * len(matrices) + 0.5, 3.4, sharey=True) as (figure, axes):
        shown: Any = None
        for axis, (title, matrix) in zip(np.atleast_1d(axes), matrices.items(), strict=True):
            shown = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
            axis.set_title(title)
            axis.set_xlabel("concept")
            axis.set_xticks(range(0, len(matrix), 4))
            axis.set_yticks(range(0, len(matrix), 4))
            axis.spines[:].set_visible(False)
            for block in blocks:
                axis.axhline(block - 0.5, color="#444444", linewidth=0.4)
                axis.axvline(block - 0.5, color="#444444", linewidth=0.4)
        np.atleast_1d(axes)[0].set_ylabel("concept")
        figure.colorbar(shown, ax=axes, label="cosine", shrink=0.8, ticks=[-1, -0.5, 0, 0.5, 1])
    return figure


def error_against_k(unexplained: Sequence[float], picks: Sequence[float], truth: Sequence[float]) -> Figure:
    """Left the share of variance left after k picks, k from 0; right how many picks inputs need, beside the truth."""
    with _canvas(1, 2, 7.2, 2.9) as (figure, (left, right)):
        left.plot(range(len(unexplained)), unexplained, color=BLUE, marker="o", markersize=4)
        left.set_yscale("log")
        left.set_xticks(range(len(unexplained)))
        left.set_xlabel("picks k at inference")
        left.set_ylabel("unexplained variance, 1 − R²")
        left.set_title("Every pick lowers the error")
        left.grid(True, axis="y", color="#DDDDDD", linewidth=0.6)
        widest = max(len(picks), len(truth))
        places = np.arange(widest)
        for name, shares, shift, colour, hatch in (
            ("picked", picks, -0.2, BLUE, ""),
            ("true", truth, 0.2, GREY, "///"),
        ):
            heights = np.pad(np.asarray(shares, float), (0, widest - len(shares)))
            right.bar(places + shift, heights, 0.38, color=colour, label=name, hatch=hatch, edgecolor="white")
        right.set_xticks(places)
        right.set_xlabel("concepts in an input")
        right.set_ylabel("share of inputs")
        right.set_title("It stops when the input is explained")
        right.legend()
    return figure


def pursuit_steps(
    correlations: np.ndarray, picks: Sequence[int], norms: Sequence[float], true: Sequence[int], names: Sequence[str]
) -> Figure:
    """One input, a panel a step: the correlation of every atom with what is left; the last panel is the end.

    correlations [steps + 1, atoms], norms [steps + 1] of what is left before each step and at the end.
    """
    panels = len(correlations)
    with _canvas(1, panels, 2.5 * panels + 0.4, 3.5, sharey=True, sharex=True) as (figure, axes):
        places = np.arange(correlations.shape[1])
        for t, axis in enumerate(axes):
            picked = picks[t] if t < len(picks) else None
            axis.barh(places, correlations[t], color=[ORANGE if place == picked else "#B9C4CF" for place in places])
            axis.axvline(0, color="#444444", linewidth=0.8)
            step = f"step {t + 1}: {names[picked]}" if picked is not None else "the end"
            axis.set_title(f"{step}\n‖r‖ = {norms[t]:.2g}")
            axis.set_xlabel("correlation with what is left")
        low, high = axes[0].get_xlim()
        for concept in true:
            axes[0].annotate("◀", (high, concept), color=GREEN, va="center", ha="right", annotation_clip=False)
        axes[0].set_xlim(low, high)
        axes[0].set_yticks(places, names, fontsize=7)
        axes[0].invert_yaxis()
    return figure

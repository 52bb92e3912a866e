import numpy as np
import pytest

from mpsae import plots


def texts(figure):
    return {text.get_text() for axis in figure.axes for text in axis.findobj(lambda o: hasattr(o, "get_text"))}


def test_grams_are_drawn_as_they_are():
    truth, learned = np.eye(6), np.full((6, 6), -0.5)
    figure = plots.grams({"truth": truth, "learned": learned}, (3,))
    shown = [axis.images[0] for axis in figure.axes[:2]]
    assert np.array_equal(shown[0].get_array(), truth)
    assert np.array_equal(shown[1].get_array(), learned)
    assert all(image.get_clim() == (-1, 1) for image in shown)
    assert {"truth", "learned", "concept", "cosine"} <= texts(figure)


def test_errors_and_shares_are_drawn_as_they_are():
    figure = plots.error_against_k([1.0, 0.1, 0.01], [0.0, 1.0], [0.0, 0.5, 0.5])
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == [1.0, 0.1, 0.01]
    assert left.get_yscale() == "log"
    assert [bar.get_height() for bar in right.patches] == [0.0, 1.0, 0.0, 0.0, 0.5, 0.5]
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)


def test_a_pursuit_has_a_panel_a_step_and_one_for_the_end():
    correlations = np.arange(12.0).reshape(3, 4)
    figure = plots.pursuit_steps(correlations, [3, 1], [2.0, 1.0, 0.5], [3, 1], ["a", "b", "c", "d"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "step 1: d\n‖r‖ = 2",
        "step 2: b\n‖r‖ = 1",
        "the end\n‖r‖ = 0.5",
    ]
    for t, axis in enumerate(figure.axes):
        assert [bar.get_width() for bar in axis.patches[:4]] == correlations[t].tolist()


def test_the_same_figure_is_the_same_text():
    one, other = (plots.svg(plots.grams({"a": np.eye(3)}, ())) for _ in range(2))
    assert one == other
    assert one.startswith("<?xml")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mpsae\[plots\]'"):
        plots.grams({"a": np.eye(3)}, ())

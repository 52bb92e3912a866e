import math

import pytest

from mpsae.schedules import LearningRate, Points


def test_the_warm_up_rises_linearly_to_the_peak():
    rate = LearningRate(2.0, "constant", warmup=4, first=0.5)
    assert [rate.at(u, 100) for u in range(6)] == pytest.approx([1.25, 1.5, 1.75, 2.0, 2.0, 2.0])


def test_cosine_falls_from_the_peak_to_its_final_share():
    rate = LearningRate(1.0, warmup=10, final=0.1)
    assert rate.at(10, 110) == pytest.approx(1.0)
    assert rate.at(60, 110) == pytest.approx(0.55)
    assert rate.at(110, 110) == pytest.approx(0.1)
    assert rate.at(35, 110) == pytest.approx(1 - 0.9 * (0.5 - 0.5 * math.cos(math.pi / 4)))
    rates = [rate.at(u, 110) for u in range(10, 110)]
    assert rates == sorted(rates, reverse=True)


def test_stable_stays_and_falls_linearly_at_the_end():
    rate = LearningRate(3e-2, "stable", warmup=100, final=0.1)
    assert rate.at(0, 15_000) == pytest.approx(3e-4)
    assert rate.at(100, 15_000) == rate.at(11_999, 15_000) == 3e-2
    assert rate.at(13_500, 15_000) == pytest.approx(3e-2 * 0.55)
    assert rate.at(15_000, 15_000) == pytest.approx(3e-3)


def test_points_are_joined_by_lines_and_held_outside():
    points = Points((10, 1.0), (20, 3.0), (30, 0.0))
    assert [points.at(u) for u in (0, 10, 15, 20, 25, 30, 99)] == [1, 1, 2, 3, 1.5, 0, 0]
    step = Points((0, 3.0), (1000, 3.0), (1000, 1.36))
    assert [step.at(u) for u in (0, 999, 1000, 2000)] == [3, 3, 1.36, 1.36]
    assert Points((5, 2.0)).at(0) == Points((5, 2.0)).at(9) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Points(), "at least one"),
        (lambda: Points((5, 1.0), (2, 1.0)), "in the order"),
        (lambda: Points((5, -1.0)), "a value of Points"),
        (lambda: LearningRate(-1.0), "peak"),
        (lambda: LearningRate(1.0, "linear"), "'cosine', 'stable', 'constant'"),
        (lambda: LearningRate(1.0, warmup=-1), "warmup"),
        (lambda: LearningRate(1.0, final=2.0), "final of a LearningRate must be a share"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()

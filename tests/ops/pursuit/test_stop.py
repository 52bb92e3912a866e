"""The truth table of `Stop` (docs/math.md), a test a line.

Atoms are the axes of R⁴ and x = (4, 3, 2, 1)·s, so every quantity is known: picks 4, 3, 2, 1 in this order, and
‖r‖² = 30, 14, 5, 1, 0 before each.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

from mpsae import Stop, pursue
from tests.ops.pursuit import oracle

AXES = torch.eye(4, dtype=torch.float64)
X = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
ABOVE, BELOW = 1 + 1e-12, 1 - 1e-12


def picks(stop, x=X, atoms=AXES, **options):
    found = pursue(x, atoms, stop, **options)
    return found.codes.values[found.codes.used].tolist()


def test_steps_are_at_most_that_many():
    assert [len(picks(k)) for k in (1, 2, 3, 4, 9)] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize(("factor", "count"), [(BELOW, 3), (1.0, 3), (ABOVE, 2)])
def test_residual_ends_before_a_pick_once_below(factor, count):
    # 2 picks leave √5: exactly there it goes on
    assert len(picks(Stop(3, residual=math.sqrt(5) * factor))) == count


def test_relative_is_measured_against_the_start():
    for scale in (1.0, 2.0**20, 2.0**-20):
        share = math.sqrt(5 / 30)
        assert len(picks(Stop(4, relative=share * ABOVE), X * scale)) == 2
        assert len(picks(Stop(4, relative=share * (1 - 1e-9)), X * scale)) == 3


@pytest.mark.parametrize(("bound", "count"), [(2 * BELOW, 3), (2.0, 2), (2 * ABOVE, 2)])
def test_coefficient_fails_a_pick_exactly_at_it(bound, count):
    assert picks(Stop(4, coefficient=bound)) == [4, 3, 2, 1][:count]


@pytest.mark.parametrize(("factor", "count"), [(1 - 1e-9, 4), (1 + 1e-9, 2)])
def test_cosine_is_the_pick_over_what_is_left(factor, count):
    x = torch.tensor([8.0, 4.0, 1.0, 1.0], dtype=torch.float64)  # cosines .883, .943, 1/√2 twice; then 1
    assert len(picks(Stop(4, cosine=math.sqrt(0.5) * factor), x)) == count


def test_cosine_goes_on_exactly_at_it():
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)  # cosine .8, then 1
    assert picks(Stop(2, cosine=0.8), x, torch.eye(2, dtype=torch.float64)) == [4, 3]


def test_a_limit_out_of_range_is_never_reached():
    found = pursue(torch.ones(2, 4), torch.eye(4), Stop(3, coefficient=1e300))
    assert found.codes.lengths.tolist() == [0, 0]
    assert found.residual.tolist() == torch.ones(2, 4).tolist()


def test_repeat_keeps_the_pick_that_repeats_then_ends():
    d = torch.tensor([[0.5, 0.0]], dtype=torch.float64)  # norm ½: each pick leaves ¾ of its part
    x = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert len(picks(Stop(6), x, d)) == 6
    assert picks(Stop(6, repeat=True), x, d) == [0.5, 0.375]


def test_positive_takes_no_negative_correlation():
    x = torch.tensor([2.0, -3.0, 0.0, 0.0], dtype=torch.float64)
    assert picks(4, x, select="positive") == [2]


def test_signed_takes_the_largest_even_if_it_is_negative():
    x = torch.tensor([-2.0, -3.0], dtype=torch.float64)
    assert picks(1, x, torch.eye(2, dtype=torch.float64), select="signed") == [-2]


def test_absolute_takes_the_largest_magnitude():
    x = torch.tensor([2.0, -3.0, 1.0, 0.0], dtype=torch.float64)
    assert picks(4, x, select="absolute") == [-3, 2, 1]


@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_the_smallest_correlation_that_counts_stands_out_of_rounding(select):
    floor = 16 * torch.finfo(torch.float64).eps
    x = torch.tensor([1.0, floor * 1.01], dtype=torch.float64)
    atom = torch.eye(2, dtype=torch.float64)[1:]
    assert len(picks(1, x, atom, select=select)) == 1
    assert len(picks(1, x * torch.tensor([1.0, 0.9]), atom, select=select)) == 0


@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_a_zero_input_has_no_picks(select):
    found = pursue(torch.zeros(2, 4), torch.eye(4), 3, select=select)
    assert found.codes.lengths.tolist() == [0, 0]
    assert found.residual.abs().max() == 0


def test_the_first_rule_to_fail_decides():
    assert len(picks(Stop(3, residual=0.1, coefficient=2.5))) == 2
    assert len(picks(Stop(1, residual=0.1, coefficient=2.5))) == 1
    assert len(picks(Stop(4, residual=4.0, coefficient=0.5))) == 1


@pytest.mark.parametrize("select", ["positive", "signed", "absolute"])
def test_every_rule_is_decided_per_row_as_the_oracle_decides_it(select):
    generator = torch.Generator().manual_seed(3)
    atoms = torch.nn.functional.normalize(torch.randn(40, 8, generator=generator, dtype=torch.float64), dim=-1)
    x = torch.randn(30, 8, generator=generator, dtype=torch.float64)
    for stop in (
        Stop(20, residual=0.5), Stop(20, relative=0.2), Stop(20, coefficient=0.4), Stop(20, cosine=0.6),
        Stop(20, repeat=True), Stop(20, residual=0.3, relative=0.15, coefficient=0.1, cosine=0.5, repeat=True),
    ):  # fmt: skip
        found = pursue(x, atoms, stop, select=select).codes
        lengths = set()
        for row in range(len(x)):
            rules = dataclasses.asdict(stop)
            expected, _ = oracle.pursue(x[row].numpy(), atoms.numpy(), rules.pop("steps"), select, **rules)
            n = len(expected)
            lengths.add(n)
            assert found.lengths[row] == n
            assert found.indices[row, :n].tolist() == [index for index, _ in expected]
            np.testing.assert_allclose(found.values[row, :n].numpy(), [v for _, v in expected], rtol=1e-9)
            assert not found.values[row, n:].any()
        assert len(lengths) > 1, f"{stop} ends all rows alike, so it shows nothing"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 0}, "whole number ≥ 1"),
        ({"steps": 2.5}, "2.5"),
        ({"steps": True}, "True"),
        ({"steps": 3, "residual": -1.0}, "residual"),
        ({"steps": 3, "relative": float("nan")}, "relative"),
        ({"steps": 3, "coefficient": float("inf")}, "coefficient"),
        ({"steps": 3, "cosine": "0.1"}, "cosine"),
        ({"steps": 3, "repeat": 1}, "repeat"),
        ({"steps": 3, "relative": 1.5}, "at most 1; got 1.5"),
    ],
)
def test_a_stop_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Stop(**arguments)


def test_numbers_of_numpy_become_plain_ones():
    stop = Stop(np.int64(3), relative=np.float64(0.1))
    assert repr(stop) == "Stop(3, relative=0.1)"
    assert type(stop.steps) is int
    assert type(stop.relative) is float


def test_a_stop_shows_the_rules_that_are_on():
    assert repr(Stop(3, cosine=0.1, repeat=True)) == "Stop(3, cosine=0.1, repeat=True)"

import pytest
import torch

from mpsae import Steering


def test_a_weight_goes_up_above_the_wanted_l0_and_down_otherwise():
    steering, weight = Steering(rate=0.1), torch.tensor(2.0)
    assert steering.next_weight(weight, torch.tensor(5.0), 4.0, 0).item() == pytest.approx(2.2)
    assert steering.next_weight(weight, torch.tensor(4.0), 4.0, 0).item() == pytest.approx(1.8)
    assert steering.next_weight(weight, torch.tensor(3.0), 4.0, 0).item() == pytest.approx(1.8)


def test_one_sided_only_goes_up():
    steering, weight = Steering(rate=0.1, one_sided=True), torch.tensor(2.0)
    assert steering.next_weight(weight, torch.tensor(5.0), 4.0, 0).item() == pytest.approx(2.2)
    assert steering.next_weight(weight, torch.tensor(3.0), 4.0, 0).item() == 2.0


def test_nothing_is_steered_during_the_ramp():
    steering, weight = Steering(rate=0.1, ramp=10), torch.tensor(2.0)
    assert steering.next_weight(weight, torch.tensor(5.0), 4.0, 9) is weight
    assert steering.next_weight(weight, torch.tensor(5.0), 4.0, 10).item() == pytest.approx(2.2)
    assert [steering.share(t) for t in (0, 4, 9, 10, 99)] == [0.1, 0.5, 1.0, 1.0, 1.0]
    assert Steering().share(0) == 1.0

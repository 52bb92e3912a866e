import pytest
import torch
from torch import nn

from mpsae.adam import GatedAdam

YES = torch.tensor(True)
ONE = torch.tensor(1.0)


@pytest.mark.parametrize("decay", ["l2", "decoupled"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torchs_adam_and_adamw(decay, weight_decay):
    ours, theirs = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.zeros(5, 3))
    with torch.no_grad():
        theirs.copy_(ours)
    kind = torch.optim.Adam if decay == "l2" else torch.optim.AdamW
    reference = kind([theirs], lr=0.02, betas=(0.8, 0.95), weight_decay=weight_decay)
    adam = GatedAdam({"p": ours}, betas=(0.8, 0.95), weight_decay=weight_decay, decay=decay)
    for _ in range(30):
        gradient = torch.randn(5, 3)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        reference.step()
        adam.step(0.02, YES, ONE)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_half_precision_parameters_are_stepped_in_float32():
    half = nn.Parameter(torch.randn(5, 3).bfloat16())
    single = nn.Parameter(half.detach().float())
    for parameter in (half, single):
        adam = GatedAdam({"p": parameter}, betas=(0.9, 0.99), weight_decay=0.1, decay="l2")
        parameter.grad = torch.ones_like(parameter)
        adam.step(0.1, YES, ONE)
        assert adam.first["p"].dtype == torch.float32
    assert torch.equal(half.detach(), single.detach().bfloat16())


def test_what_does_not_count_leaves_everything_to_the_bit():
    parameter = nn.Parameter(torch.randn(3, 5, 2))
    adam = GatedAdam({"p": parameter}, betas=(0.9, 0.99), weight_decay=0.1, decay="l2", runs=3)
    parameter.grad = torch.randn(3, 5, 2)
    adam.step(0.1, torch.tensor([True, True, True]), torch.ones(3))
    before, state = parameter.detach().clone(), {n: t.clone() for n, t in adam.state_dict().items()}
    parameter.grad = torch.full((3, 5, 2), torch.nan)
    parameter.grad[0] = 1.0
    adam.step(0.1, torch.tensor([True, False, False]), torch.ones(3))
    assert torch.equal(parameter[1:], before[1:])
    assert not torch.equal(parameter[0], before[0])
    for name, tensor in adam.state_dict().items():
        assert torch.equal(tensor[1:], state[name][1:])
    assert adam.steps.tolist() == [2, 1, 1]


def test_every_run_is_stepped_as_it_would_be_alone():
    stack = nn.Parameter(torch.randn(3, 4, 2))
    singles = [nn.Parameter(stack[i].detach().clone()) for i in range(3)]
    options = {"betas": (0.9, 0.99), "weight_decay": 0.1, "decay": "decoupled"}
    together = GatedAdam({"p": stack}, runs=3, **options)
    alone = [GatedAdam({"p": single}, **options) for single in singles]
    for number in range(5):
        stack.grad = torch.randn(3, 4, 2)
        counts, scale = torch.tensor([True, number != 2, True]), torch.rand(3)
        together.step(0.05, counts, scale)
        for i, adam in enumerate(alone):
            singles[i].grad = stack.grad[i].clone()
            adam.step(0.05, counts[i], scale[i])
            torch.testing.assert_close(together.gradient_norm()[i], adam.gradient_norm())
    torch.testing.assert_close(stack.detach(), torch.stack([single.detach() for single in singles]))


def test_moments_of_atoms_are_forgotten():
    parameters = {"atoms": nn.Parameter(torch.randn(6, 2)), "bias": nn.Parameter(torch.randn(2))}
    adam = GatedAdam(parameters, betas=(0.9, 0.99), weight_decay=0.0, decay="l2")
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    adam.step(0.1, YES, ONE)
    mask = torch.tensor([False, True, False, False, True, False])
    adam.clear_(("atoms",), mask)
    for moments in (adam.first, adam.second):
        assert not moments["atoms"][mask].any()
        assert moments["atoms"][~mask].all()
        assert moments["bias"].all()


def test_a_state_of_other_parameters_is_refused():
    adam = GatedAdam({"p": nn.Parameter(torch.ones(2))}, betas=(0.9, 0.99), weight_decay=0.0, decay="l2")
    other = GatedAdam({"q": nn.Parameter(torch.ones(2))}, betas=(0.9, 0.99), weight_decay=0.0, decay="l2")
    with pytest.raises(ValueError, match="use that of the same SAE"):
        adam.load_state_dict(other.state_dict())

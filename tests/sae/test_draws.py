import torch

from mpsae.sae.draws import advanced, uniform

MASK = 2**64 - 1


def splitmix(seed, count):
    """Vigna's C, in Python's integers."""
    numbers = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        numbers.append(((z >> 11) + 0.5) / 2**53)
    return numbers


def test_numbers_are_those_of_splitmix64():
    for seed in (0, 1, 12345, 2**63 - 1):
        assert uniform(torch.tensor(seed), 50).tolist() == splitmix(seed, 50)


def test_an_advanced_state_goes_on_where_the_numbers_ended():
    state = torch.tensor(7)
    assert torch.equal(uniform(state, 30)[10:], uniform(advanced(state, 10), 20))


def test_numbers_are_uniform():
    numbers = uniform(torch.tensor(3), 100_000)
    assert 0 < numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005
    assert (torch.histc(numbers, 10, 0, 1) / 10_000 - 1).abs().max() < 0.04


def test_one_of_many_draws_what_it_would_draw_alone():
    states = torch.tensor([3, 4, 5])
    together = torch.vmap(lambda state: uniform(state, 6))(states)
    assert torch.equal(together, torch.stack([uniform(state, 6) for state in states]))

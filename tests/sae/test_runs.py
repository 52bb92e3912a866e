import pytest
import torch

from mpsae import MatchingPursuitSAE, Runs, Stop


def runs_of(count=2, **options):
    return Runs([MatchingPursuitSAE(4, 6, 2, seed=seed, **options) for seed in range(count)])


def test_none_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Runs([])
    with pytest.raises(ValueError, match="a list"):
        Runs(MatchingPursuitSAE(4, 6, 2))


def test_any_iterable_of_saes_will_do():
    assert len(Runs(MatchingPursuitSAE(4, 6, 2, seed=seed) for seed in range(3))) == 3
    with pytest.raises(IndexError, match="one of 3, by its number"):
        Runs(MatchingPursuitSAE(4, 6, 2, seed=seed) for seed in range(3))[0:2]


def test_inputs_that_are_neither_shared_nor_one_a_run_are_refused():
    for shape in ((4,), (3, 5, 4), (1, 2, 5, 4)):
        with pytest.raises(ValueError, match=r"\[B, d_in\] for all 2 runs"):
            runs_of()(torch.randn(shape))


def test_differences_outside_the_tensors_are_named():
    one, other = MatchingPursuitSAE(4, 6, 2), MatchingPursuitSAE(4, 6, 2, constraint="ball")
    with pytest.raises(ValueError, match="constraint: 'sphere' and 'ball'"):
        Runs([one, other])
    with pytest.raises(ValueError, match="atoms"):
        Runs([one, MatchingPursuitSAE(4, 6, 2).double()])


def test_the_state_dict_is_the_stacked_tensors():
    runs = runs_of(3)
    assert {name: tuple(t.shape) for name, t in runs.state_dict().items()} == {
        "atoms": (3, 6, 4), "bias": (3, 4), "silent": (3, 6), "bounds": (3, 4),
    }  # fmt: skip


def test_singles_are_not_changed_by_the_runs_made_of_them():
    sae = MatchingPursuitSAE(4, 6, 2)
    runs = Runs([sae])
    with torch.no_grad():
        runs.atoms.zero_()
    assert sae.atoms.any()


def test_a_run_is_saved_with_its_own_seed(tmp_path):
    import mpsae

    runs_of(3)[2].save(tmp_path)
    assert mpsae.load(tmp_path).settings()["seed"] == 2


def test_encode_refuses_values_that_are_not_finite():
    runs, x = runs_of(), torch.randn(5, 4)
    with torch.no_grad():
        runs.atoms[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="the atoms must be finite"):
        runs.encode(x)
    x[3] = torch.inf
    with pytest.raises(ValueError, match="the first is number 3"):
        runs.encode(x)


def test_train_and_eval_reach_the_code_that_all_runs_share():
    runs = runs_of()
    assert runs.program.training
    assert not runs.eval().program.training
    assert not runs[0].training
    assert runs.train().program.training


def test_what_is_not_to_be_trained_is_not():
    saes = [MatchingPursuitSAE(4, 6, 2, seed=seed) for seed in range(2)]
    saes[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="bias"):
        Runs(saes)
    saes[1].bias.requires_grad_(False)
    runs = Runs(saes)
    assert not runs.bias.requires_grad
    assert runs.atoms.requires_grad
    assert not runs[0].bias.requires_grad


def test_a_reading_sees_what_is_written_in_place_later():
    runs = runs_of()
    short, bounded = runs.at(k=1), runs.at(stop=Stop(3, cosine=0.5))
    with torch.no_grad():
        runs.bounds[:, 0] = 9.0
        runs.atoms.mul_(-1)
    assert short[1].stop == Stop(1, residual=9.0)
    assert bounded[1].stop == Stop(3, cosine=0.5)
    assert torch.equal(short.atoms, runs.atoms)


def test_runs_say_what_they_are():
    assert repr(runs_of()).startswith("Runs(2 × MatchingPursuitSAE(d_in=4, d_sae=6,")

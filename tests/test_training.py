import copy
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mpsae import BatchTopKSAE, Data, MatchingPursuitSAE, Reseed, Runs, TopKSAE
from mpsae.data.data import Batch
from mpsae.schedules import LearningRate, Points
from mpsae.training import TrainConfig, Training

D_IN, D_SAE = 8, 20
MATRIX = torch.randn(300, D_IN, generator=torch.Generator().manual_seed(5)) + 0.2


def stream(batch_size=32, seed=0):
    return Data(MATRIX).stream(batch_size, seed=seed)


def mp(seed=0, **options):
    return MatchingPursuitSAE(D_IN, D_SAE, 3, seed=seed, **options)


def state_of(sae):
    return {name: tensor.clone() for name, tensor in sae.state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("make", [mp, lambda: TopKSAE(D_IN, D_SAE, 3)])
def test_it_is_the_loop_that_one_would_write(make, optimizer):
    rate = LearningRate(3e-3, "stable", warmup=5, final=0.1)
    config = TrainConfig(30, rate, optimizer=optimizer, betas=(0.8, 0.95), weight_decay=0.01, clip=0.5)
    ours, theirs = make(), make()
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    plain = kind(theirs.parameters(), lr=1.0, betas=(0.8, 0.95), weight_decay=0.01)
    for update, batch in zip(Training(ours, stream(), config), stream(), strict=False):
        for group in plain.param_groups:
            group["lr"] = rate.at(update.number - 1, 30)
        out = theirs(batch.x)
        plain.zero_grad()
        loss = sum(theirs.losses(batch.x, out).values())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        plain.step()
        theirs.update_(batch.x, out)
        assert torch.equal(update.x, batch.x)
        torch.testing.assert_close(sum(update.losses["sae"].values()), loss.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(update.gradient_norm["sae"], norm, rtol=1e-4, atol=1e-5)
        assert update.counted["sae"]
    assert update.number == ours.updates == 30
    torch.testing.assert_close(ours.atoms, theirs.atoms, rtol=1e-3, atol=1e-4)


def test_runs_are_trained_as_singles_are():
    config = TrainConfig(15, 3e-3, clip=1.0)
    singles = [mp(seed).double() for seed in range(3)]
    runs = Runs(copy.deepcopy(singles))
    data = Data(MATRIX.double())
    for _ in Training(runs, data.stream(32), config):
        pass
    for i, sae in enumerate(singles):
        for _ in Training(sae, data.stream(32), config):
            pass
        torch.testing.assert_close(runs[i].atoms, sae.atoms, rtol=1e-6, atol=1e-7)
        assert torch.equal(runs[i].silent, sae.silent)


def test_several_kinds_share_one_pass_and_each_is_trained_as_it_would_be_alone():
    config = TrainConfig(12, 3e-3)
    together = {"mp": mp(), "topk": TopKSAE(D_IN, D_SAE, 2), "runs": Runs([BatchTopKSAE(D_IN, D_SAE, 2)])}
    alone = copy.deepcopy(together)
    updates = list(Training(together, stream(), config))
    assert updates[-1].losses.keys() == together.keys()
    for name, sae in alone.items():
        for _ in Training(sae, stream(), config):
            pass
        assert equal(sae.state_dict(), together[name].state_dict()), name


def test_an_update_that_is_not_finite_is_not_made():
    clean = [batch.x for batch in islice(stream(), 6)]
    spoiled = [x.clone() for x in clean[:3]] + [clean[0].clone()] + clean[3:]
    spoiled[3][4, 2] = torch.nan
    for make in (mp, lambda: TopKSAE(D_IN, D_SAE, 2, reseed=Reseed(every=4)), lambda: BatchTopKSAE(D_IN, D_SAE, 2)):
        sae = make()
        training, counted = Training(sae, spoiled, TrainConfig(7, LearningRate(1e-2, "constant"))), []
        before = moments = None
        for update in training:
            counted.append(bool(update.counted["sae"]))
            if update.number == 4:
                assert equal(before, state_of(sae))
                assert equal(moments, {n: t.clone() for n, t in training.optimizers["sae"].state_dict().items()})
            before = state_of(sae)
            moments = {n: t.clone() for n, t in training.optimizers["sae"].state_dict().items()}
        assert counted == [True] * 3 + [False] + [True] * 3
        assert all(tensor.isfinite().all() for tensor in sae.state_dict().values())


def test_the_nan_of_one_stops_that_one_only():
    runs, other = Runs([mp(0), mp(1)]), mp(2)
    with torch.no_grad():
        runs.atoms[1, 0, 0] = torch.nan
    before = state_of(runs[1])
    for update in Training({"runs": runs, "other": other}, stream(), TrainConfig(5, 1e-2)):
        assert update.counted["runs"].tolist() == [True, False]
        assert update.counted["other"]
    after = runs[1].state_dict()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    expected = mp(0)
    for _ in Training(expected, stream(), TrainConfig(5, 1e-2)):
        pass
    torch.testing.assert_close(runs[0].atoms, expected.atoms)


def test_one_batch_a_run():
    batches = [torch.randn(2, 16, D_IN) for _ in range(3)]
    runs = Runs([mp(0), mp(1)])
    for _ in Training(runs, batches, TrainConfig(3, 1e-2)):
        pass
    for i in range(2):
        alone = mp(i)
        for _ in Training(alone, [batch[i] for batch in batches], TrainConfig(3, 1e-2)):
            pass
        torch.testing.assert_close(runs[i].atoms, alone.atoms, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("as_runs", [False, True])
def test_accumulated_batches_make_the_update_of_one_large_batch(as_runs):
    def make():
        return Runs([mp(0), mp(1)]) if as_runs else mp()

    small, large = make(), make()
    config = {"lr": 1e-2, "clip": 1.0}
    updates = list(Training(small, stream(8), TrainConfig(6, accumulate=4, **config)))
    for mine, other in zip(updates, Training(large, stream(32), TrainConfig(6, **config)), strict=True):
        assert torch.equal(mine.x, other.x)
        torch.testing.assert_close(mine.gradient_norm["sae"], other.gradient_norm["sae"], rtol=1e-3, atol=1e-5)
        assert mine.outputs["sae"].x_hat.shape == other.outputs["sae"].x_hat.shape
    torch.testing.assert_close(small.atoms, large.atoms, rtol=1e-3, atol=1e-4)
    assert torch.equal(small.silent, large.silent)


def test_a_training_goes_on_bit_for_bit_where_it_was():
    def saes():
        return {
            "mp": mp(reseed=Reseed(every=7, bound=0.5)),
            "b": Runs([BatchTopKSAE(D_IN, D_SAE, 2, seed=s) for s in (0, 1)]),
        }

    config = TrainConfig(40, 1e-2, clip=1.0)
    whole = saes()
    for _ in Training(whole, stream(), config):
        pass
    first = saes()
    training = Training(first, stream(), config)
    for update in training:
        if update.number == 17:
            break
    state = copy.deepcopy(training.state_dict())
    second = saes()
    for name, sae in second.items():
        sae.load_state_dict(first[name].state_dict())
        program = sae.program if isinstance(sae, Runs) else sae
        program.updates = first[name].updates
    resumed = Training(second, stream(), config)
    resumed.load_state_dict(state)
    numbers = [update.number for update in resumed]
    assert numbers == list(range(18, 41))
    for name, sae in whole.items():
        assert equal(sae.state_dict(), second[name].state_dict()), name


def test_atoms_made_anew_have_their_moments_cleared():
    sae = mp(reseed=Reseed(every=3, bound=0.3))
    training = Training(sae, stream(), TrainConfig(3, 1e-2))
    atoms = []
    for _ in training:
        atoms.append(sae.atoms.detach().clone())
    moved = ((atoms[2] - atoms[1]).norm(dim=-1)) > 0.3
    assert 0 < moved.sum() < D_SAE
    assert not training.optimizers["sae"].first["atoms"][moved].any()


def test_a_number_as_learning_rate_warms_up_and_falls():
    rates = [update.rate for update in Training(mp(), stream(), TrainConfig(100, 1e-2))]
    assert rates[0] == pytest.approx(5e-3)
    assert max(rates) == pytest.approx(1e-2)
    assert rates[-1] < 1e-4


def test_sparsities_follow_their_schedules():
    saes = {
        "mp": mp(), "runs": Runs([mp(0), mp(1)]), "topk": TopKSAE(D_IN, D_SAE, 9),
        "batchtopk": BatchTopKSAE(D_IN, D_SAE, 9),
    }  # fmt: skip
    schedules = {
        "k": Points((0, 6), (4, 2)),
        "l0": Points((0, 3), (2, 3), (2, 1.36)),
        "coefficient": Points((0, 0), (4, 1.0)),
    }
    widths, actives = [], []
    for update in Training(saes, stream(), TrainConfig(6, schedules=schedules)):
        outputs = update.outputs
        widths.append([outputs[name].acts.values.shape[-1] for name in ("mp", "runs", "topk")])
        actives.append(int((outputs["batchtopk"].acts != 0).sum()))
        coefficient = min((update.number - 1) / 4, 1.0)
        assert saes["mp"].stop.coefficient == saes["runs"][1].stop.coefficient == coefficient
        assert (outputs["mp"].codes.values[outputs["mp"].codes.used] > coefficient).all()
    assert widths == [[k] * 3 for k in (6, 5, 4, 3, 2, 2)]
    assert actives == [97, 97, 44, 44, 44, 44]


def test_saes_are_put_in_training_mode():
    sae = BatchTopKSAE(D_IN, D_SAE, 2).eval()
    update = next(iter(Training(sae, stream(32), TrainConfig(1))))
    assert sae.training
    assert (update.outputs["sae"].acts != 0).sum() == 65


def test_any_batches_will_do():
    for batches in (
        DataLoader(TensorDataset(MATRIX), batch_size=50),
        DataLoader(MATRIX, batch_size=50),
        [Batch(MATRIX[:50])] * 5,
    ):
        sae = mp()
        assert len(list(Training(sae, batches, TrainConfig(5)))) == 5
        with pytest.raises(ValueError, match="cannot be resumed"):
            Training(sae, batches, TrainConfig(5)).state_dict()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="ended after 2 of 5 updates"):
        list(Training(mp(), [MATRIX] * 2, TrainConfig(5)))
    with pytest.raises(ValueError, match="begins with one; got list of str"):
        list(Training(mp(), [["a"]], TrainConfig(5)))
    for config in (None, 100):
        with pytest.raises(ValueError, match="use TrainConfig"):
            Training(mp(), stream(), config)
    for saes in ({}, {"a": 1}, torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="Training takes an SAE"):
            Training(saes, stream(), TrainConfig(5))
    with pytest.raises(ValueError, match="'l0' is scheduled, but no SAE has it"):
        Training(mp(), stream(), TrainConfig(5, schedules={"l0": Points((0, 3))}))
    training, other = (Training({name: mp()}, stream(), TrainConfig(5)) for name in "ab")
    with pytest.raises(ValueError, match="the SAEs"):
        training.load_state_dict(other.state_dict())
    for options, words in (
        ({"updates": 0}, "updates"),
        ({"lr": -1.0}, "lr"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"clip": -1}, "clip"),
        ({"accumulate": 0}, "accumulate"),
        ({"schedules": {"k": 3}}, "Points"),
    ):
        with pytest.raises(ValueError, match=words):
            TrainConfig(**{"updates": 5} | options)

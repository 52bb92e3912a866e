"""The paper's settings, written out once more."""

import pytest
import torch

from mpsae import Stop, Training, presets
from mpsae.data.data import Data
from mpsae.data.synthetic import Tree


def test_the_synthetic_study():
    study = presets.SYNTHETIC
    config = study.config(kind="batchtopk")
    assert (study.batch_size, config.updates, config.optimizer) == (200, 15_000, "adam")
    assert (config.betas, config.clip, config.weight_decay) == ((0.5, 0.9375), 1.0, 0.0)
    assert [config.rate.at(u, 15_000) for u in (0, 99, 11_999, 15_000)] == pytest.approx([3e-4, 3e-2, 3e-2, 3e-3])
    assert [config.schedules["l0"].at(u) for u in (0, 999, 1000)] == [3, 3, 1.36]
    assert study.config(kind="mp").schedules == study.config().schedules == {}
    mp, relu, btk, nested = (study.make(kind, 20) for kind in ("mp", "relu", "batchtopk", "matryoshka"))
    assert mp.stop == Stop(21, residual=0.05, repeat=True)
    assert not isinstance(mp.bias, torch.nn.Parameter)
    for sae in (mp, relu, btk, nested):
        assert (sae.d_in, sae.d_sae, sae.constraint, sae.auxiliary) == (20, 20, "free", None)
    for sae in (relu, nested):
        assert (sae.l0, sae.l1, sae.steering.rate, sae.steering.ramp) == (1.36, 0.1, 3e-4, 3000)
        assert (sae.scaling, sae.centred) == ("norm", False)
    assert (btk.l0, btk.decay, btk.scaling) == (3.0, 0.9, "none")
    assert (nested.nested, nested.reduce, nested.activation) == (5, "mean", "relu")


@pytest.mark.parametrize(("study", "epochs"), [(presets.VISION, 50), (presets.MULTIMODAL, 20)])
def test_the_vision_and_the_multimodal_study(study, epochs):
    config = study.config(rows=1_000_000)
    assert (study.batch_size, config.updates, config.optimizer) == (8000, epochs * 125, "adamw")
    assert (config.weight_decay, config.betas, config.clip) == (1e-5, (0.9, 0.999), 0.0)
    rate, updates = config.rate, config.updates
    assert max(rate.at(u, updates) for u in range(0, updates, 10)) == pytest.approx(5e-4, rel=1e-3)
    assert rate.at(updates, updates) == pytest.approx(1e-6)
    assert rate.at(0, updates) < 5e-6
    for kind in study.saes:
        sae = study.make(kind, 4, k=5)
        assert (sae.d_sae, sae.constraint, sae.revival.weight) == (100, "ball", 1e-5)
    assert study.make("relu", 4, k=5).steering.one_sided
    with pytest.raises(ValueError, match=f"trains for {epochs} epochs: say how many"):
        study.config()


def test_the_language_study():
    study = presets.LANGUAGE
    config = study.config()
    assert (study.batch_size, config.updates, config.optimizer) == (5000, 40_000, "adam")
    assert (config.betas, config.weight_decay, config.clip) == ((0.9, 0.95), 1e-4, 1.0)
    assert {config.rate.at(u, 40_000) for u in (0, 20_000, 40_000)} == {1e-3}
    for kind in study.saes:
        sae = study.make(kind, 50)
        assert (sae.d_sae, sae.scaling) == (200, "standard")
    assert study.make("mp", 50).k == study.make("topk", 50).k == study.make("relu", 50).l0 == 100


def test_a_preset_trains():
    study = presets.SYNTHETIC
    for kind in study.saes:
        sae = study.make(kind, 20, seed=1)
        updates = Training(sae, Data(Tree(0.2)).stream(study.batch_size), study.config(kind=kind))
        for update in updates:
            if update.number == 20:
                break
        assert update.counted["sae"]


def test_a_kind_that_the_study_does_not_train_is_refused():
    with pytest.raises(ValueError, match="kind must be one of 'mp', 'topk', 'relu'; got 'omp'"):
        presets.LANGUAGE.make("omp", 8)

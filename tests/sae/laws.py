"""The laws of an SAE, written once: a variant's test class says how it is made and inherits them all."""

import copy
import json

import numpy as np
import pytest
import torch

import mpsae
from mpsae import SAE, Codes, Runs

D_IN, D_SAE, K = 10, 24, 3


class Laws:
    """`make(seed=…)` gives a small SAE; `learn` lets it see some updates first."""

    def make(self, seed=0, **options) -> SAE:
        raise NotImplementedError

    def learn(self, sae, updates=5, seed=0):
        """Some updates as a user writes them, on data of the module's own type."""
        optimizer = torch.optim.SGD(sae.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(updates):
            x = self.inputs(generator).to(next(sae.parameters()).dtype)
            out = sae(x)
            optimizer.zero_grad()
            sum(sae.losses(x, out).values()).sum().backward()
            optimizer.step()
            sae.update_(x, out)
        return sae

    def inputs(self, generator=None, rows=32):
        return torch.randn(rows, D_IN, generator=generator) + 0.3

    # Reading.

    @pytest.mark.parametrize("leading", [(), (5,), (2, 3), (0,)])
    def test_any_leading_shape_is_the_flat_one(self, leading):
        sae = self.learn(self.make()).eval()
        x = torch.randn(*leading, D_IN)
        out, flat = sae(x), sae(x.reshape(-1, D_IN))
        assert out.x_hat.shape == out.residual.shape == x.shape
        assert out.codes.lengths.shape == leading
        torch.testing.assert_close(out.x_hat.reshape(-1, D_IN), flat.x_hat)
        torch.testing.assert_close(sae.encode(x).dense(), out.codes.dense())

    def test_what_is_read_and_what_is_left_make_x(self):
        sae, x = self.learn(self.make()).eval(), self.inputs()
        out = sae(x)
        torch.testing.assert_close(out.x_hat + out.residual, x)
        torch.testing.assert_close(sae.decode(out.codes), out.x_hat)
        torch.testing.assert_close(sae.decode(sae.encode(x)), out.x_hat)

    def test_decoding_codes_is_decoding_the_dense(self):
        sae, x = self.learn(self.make()).eval(), self.inputs()
        codes = sae.encode(x)
        torch.testing.assert_close(sae.decode(codes), sae.decode(codes.dense()))
        torch.testing.assert_close(sae.decode(codes), codes.dense() @ sae.atoms + sae.bias)

    def test_decoding_sends_gradients_to_atoms_values_and_bias(self):
        sae, x = self.learn(self.make()).eval().double(), self.inputs().double()
        codes = sae.encode(x).detach()
        values = codes.values.requires_grad_()
        parameters = [p for p in (sae.atoms, values, sae.bias) if p.requires_grad]
        gathered = sae.decode(Codes(values, codes.indices, codes.lengths, codes.d_sae, codes.order))
        dense = torch.zeros(len(x), D_SAE, dtype=x.dtype).scatter_add(-1, codes.indices.long(), values)
        ours = torch.autograd.grad(gathered.square().sum(), parameters)
        theirs = torch.autograd.grad((dense @ sae.dictionary + sae.bias).square().sum(), parameters)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other)

    def test_half_precision_inputs_are_read_in_float32(self):
        sae, x = self.learn(self.make()).eval(), self.inputs().bfloat16()
        out = sae(x)
        assert out.codes.values.dtype == out.x_hat.dtype == out.residual.dtype == torch.float32
        torch.testing.assert_close(out.x_hat, sae(x.float()).x_hat)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_an_sae_of_half_precision_computes_in_float32(self, dtype, tmp_path):
        sae = self.make().to(dtype)
        if isinstance(sae.bias, torch.nn.Parameter):
            with torch.no_grad():
                sae.bias.copy_(torch.randn(D_IN) / 16)
        x = (self.inputs() + 30).to(dtype)
        wide = copy.deepcopy(sae).float().eval()
        out = sae.eval()(x)
        assert out.codes.values.dtype == out.x_hat.dtype == out.residual.dtype == torch.float32
        torch.testing.assert_close(out.x_hat, wide(x.float()).x_hat)
        torch.testing.assert_close(sae.decode(out.codes), out.x_hat)
        torch.testing.assert_close(sae.decode(out.codes.dense()), out.x_hat)
        self.learn(sae.train(), 3).save(tmp_path)  # its own rounding is no reason for load to refuse it
        assert mpsae.load(tmp_path).atoms.dtype == dtype

    def test_reading_changes_nothing(self):
        sae, x = self.learn(self.make()), self.inputs()
        before = copy.deepcopy(sae.state_dict())
        sae.eval()
        sae(x), sae.encode(x), sae.at(k=2).encode(x), sae.encode(x, k=1)
        sae.train()
        assert before.keys() == sae.state_dict().keys()
        assert all(torch.equal(before[name], tensor) for name, tensor in sae.state_dict().items())

    def test_at_reads_the_same_tensors_and_leaves_the_sae_as_it_was(self):
        sae, x = self.learn(self.make()).eval(), self.inputs()
        before = sae.encode(x)
        short = sae.at(k=2)
        assert short.atoms is sae.atoms
        assert (short.encode(x).l0() <= 2).all()
        assert torch.equal(short.encode(x).values, sae.encode(x, k=2).values)
        assert torch.equal(sae.encode(x).values, before.values)
        with torch.no_grad():
            sae.atoms.mul_(-1)
        assert torch.equal(short.atoms, sae.atoms)
        assert not self.make().train().at(k=2).training
        with pytest.raises(ValueError, match="move that one"):
            short.to(torch.float64)
        assert sae.to(torch.float64).atoms.dtype == torch.float64

    def test_more_atoms_never_read_fewer(self):
        sae, x = self.learn(self.make()).eval(), self.inputs()
        l0 = torch.stack([sae.at(k=k).encode(x).l0() for k in (1, 2, 3)])
        assert (l0.diff(dim=0) >= 0).all()

    # Training.

    def test_the_reconstruction_loss_sums_coordinates_and_averages_inputs(self):
        sae, x = self.make(), self.inputs()
        out = sae(x)
        expected = sum((x[i] - out.x_hat[i]).square().sum() for i in range(len(x))) / len(x)
        torch.testing.assert_close(sae.losses(x, out)["reconstruction"], expected)

    def test_updates_lower_the_error(self):
        sae, x = self.make(), self.inputs(rows=500)
        before = sae(x).residual.square().sum()
        assert self.learn(sae, 60)(x).residual.square().sum() < before

    def test_the_seed_decides_the_start(self):
        assert torch.equal(self.make(seed=3).atoms, self.make(seed=3).atoms)
        assert not torch.equal(self.make(seed=3).atoms, self.make(seed=4).atoms)

    def test_data_drawn_with_the_same_seed_are_not_the_start(self):
        x = torch.randn(D_SAE, D_IN, generator=torch.Generator().manual_seed(0))
        cosines = torch.nn.functional.normalize(x, dim=-1) @ self.make(seed=0).atoms.T
        assert cosines.diagonal().abs().max() < 0.99

    def test_atoms_start_at_unit_norm(self):
        torch.testing.assert_close(self.make().atoms.norm(dim=-1), torch.ones(D_SAE))

    def test_silent_counts_the_inputs_since_an_atom_fired(self):
        sae = self.make()
        expected = torch.zeros(D_SAE, dtype=torch.int64)
        for seed in range(8):
            x = self.inputs(torch.Generator().manual_seed(seed), rows=2)
            out = sae(x)
            sae.update_(x, out)
            expected = torch.where((out.codes.dense() != 0).any(0), 0, expected + 2)
            assert torch.equal(sae.silent, expected)
        assert expected.max() > 2
        assert sae.updates == 8

    def test_an_input_with_nan_is_no_firing_and_takes_nobodys_place(self):
        sae, x = self.make(), self.inputs()
        x[5] = torch.nan
        out = sae.train()(x)
        assert out.residual[5].isnan().any()
        fine = torch.arange(len(x)) != 5
        assert (out.codes.dense()[fine] != 0).any(-1).sum() > len(x) / 2
        sae.update_(x, out)
        fired = (out.codes.dense()[fine] != 0).any(0)
        assert torch.equal(sae.silent == 0, fired)
        for name, buffer in sae.named_buffers():
            assert buffer.isfinite().all(), name

    def test_an_empty_batch_changes_nothing_but_counts(self):
        sae = self.learn(self.make())
        before, x = copy.deepcopy(dict(sae.named_buffers())), torch.randn(0, D_IN)
        sae.update_(x, sae(x))
        for name in before.keys() - {"fired", "drawn", "energy", "rank"}:
            torch.testing.assert_close(sae.get_buffer(name), before[name])

    def test_a_reading_is_not_trained(self):
        reading, x = self.make().at(k=2), self.inputs()
        with pytest.raises(ValueError, match="is for reading: train the SAE that it reads"):
            reading.losses(x, reading(x))

    def test_what_is_scheduled_can_be_set_and_nothing_else(self):
        sae = self.make()
        assert sae.scheduled
        for name in sae.scheduled:
            sae.schedule_(name, 1.0)
            read = getattr(sae, name, None)
            assert (getattr(sae.stop, name) if read is None else read) == 1.0
        with pytest.raises(ValueError, match="cannot be scheduled"):
            sae.schedule_("speed", 1.0)
        with pytest.raises(ValueError, match="must be above 0"):
            sae.schedule_(sae.scheduled[0], 0.0)

    def test_atomwise_names_parameters_with_a_row_an_atom(self):
        sae = self.make()
        parameters = dict(sae.named_parameters())
        assert "atoms" in sae.atomwise
        assert all(len(parameters[name]) == D_SAE for name in sae.atomwise)

    def test_data_can_be_the_start(self):
        sae, x = self.make(), torch.randn(100, D_IN) + 2
        sae.init_from_data_(x, seed=1)
        directions = torch.nn.functional.normalize(x - sae.bias, dim=-1)
        assert ((sae.atoms @ directions.T).max(-1).values > 1 - 1e-5).all()
        if isinstance(sae.bias, torch.nn.Parameter):
            torch.testing.assert_close(sae.bias.detach(), x.mean(0))
        for few in (x[:5], x[:0], torch.zeros(100, D_IN)):
            with pytest.raises(ValueError, match=f"{D_SAE} atoms need as many rows"):
                self.make().init_from_data_(few)

    # Many at once.

    @pytest.mark.parametrize("per_run", [False, True])
    def test_runs_are_singles_gradients_and_updates_too(self, per_run):
        singles = [self.make(seed=seed).double() for seed in range(3)]
        runs = Runs(copy.deepcopy(singles))
        parameters = dict(runs.named_parameters())
        assert parameters.keys() == dict(singles[0].named_parameters()).keys()
        for update in range(4):
            generator = torch.Generator().manual_seed(update)
            x = torch.randn(*((3,) if per_run else ()), 16, D_IN, dtype=torch.float64, generator=generator)
            out = runs(x)
            runs.zero_grad()
            sum(runs.losses(x, out).values()).sum().backward()
            with torch.no_grad():
                for parameter in parameters.values():
                    parameter -= 0.05 * parameter.grad
            runs.update_(x, out)
            for i, sae in enumerate(singles):
                own = x[i] if per_run else x
                out = sae(own)
                sae.zero_grad()
                sum(sae.losses(own, out).values()).backward()
                with torch.no_grad():
                    for name, parameter in sae.named_parameters():
                        torch.testing.assert_close(parameters[name].grad[i], parameter.grad, rtol=1e-10, atol=1e-12)
                        parameter -= 0.05 * parameter.grad
                sae.update_(own, out)
                assert runs[i].updates == sae.updates
                for name, tensor in sae.state_dict().items():
                    torch.testing.assert_close(runs[i].state_dict()[name], tensor, rtol=1e-10, atol=1e-12)

    def test_runs_are_read_as_singles_are(self):
        singles = [self.learn(self.make(seed=seed)).eval() for seed in range(3)]
        runs, x = Runs(singles).eval(), self.inputs()
        assert len(runs) == 3
        codes, short = runs.encode(x), runs.at(k=2).encode(x)
        for i, sae in enumerate(singles):
            assert runs[i].seed == i
            assert repr(runs[i]) == repr(sae)
            torch.testing.assert_close(codes[i].dense(), sae.encode(x).dense())
            torch.testing.assert_close(short[i].dense(), sae.encode(x, k=2).dense())
            torch.testing.assert_close(runs.decode(codes)[i], sae.decode(codes[i]))
            torch.testing.assert_close(runs[i].encode(x).dense(), sae.encode(x).dense())

    def test_one_run_is_the_run_itself(self):
        runs = Runs([self.make(seed=seed) for seed in range(2)])
        with torch.no_grad():
            runs[1].atoms.zero_()
        assert not runs.atoms[1].any()
        assert runs.atoms[0].any()
        with pytest.raises(IndexError, match="a run is one of 2, by its number; got 2"):
            runs[2]

    # Files.

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_a_saved_sae_is_loaded_bit_for_bit(self, tmp_path, dtype):
        sae = self.learn(self.make(seed=7)).to(dtype)
        sae.save(tmp_path / "sae")
        loaded = mpsae.load(tmp_path / "sae")
        assert type(loaded) is type(sae)
        assert not loaded.training
        assert loaded.settings() == sae.settings()
        assert loaded.updates == sae.updates == 5
        assert loaded.state_dict().keys() == sae.state_dict().keys()
        for name, tensor in sae.state_dict().items():
            assert loaded.state_dict()[name].dtype == tensor.dtype
            assert torch.equal(loaded.state_dict()[name], tensor)
        assert {n for n, p in loaded.named_parameters() if p.requires_grad} == dict(sae.named_parameters()).keys()
        x = self.inputs()
        assert torch.equal(loaded.encode(x).values, sae.eval().encode(x).values)

    def test_a_setting_this_version_does_not_know_is_refused(self, tmp_path):
        self.make().save(tmp_path)
        about = json.loads((tmp_path / "sae.json").read_text())
        about["settings"]["twist"] = 1
        (tmp_path / "sae.json").write_text(json.dumps(about))
        with pytest.raises(ValueError, match="twist"):
            mpsae.load(tmp_path)

    # Refusals.

    @pytest.mark.parametrize(
        ("x", "words"),
        [
            (torch.randn(3, D_IN + 1), f"its last dimension must be {D_IN}"),
            (torch.tensor(1.0), f"its last dimension must be {D_IN}"),
            (torch.ones(3, D_IN, dtype=torch.int64), r"use x\.float\(\)"),
            (torch.randn(3, D_IN, device="meta"), "move one"),
            (np.ones((3, D_IN)), r"use torch\.as_tensor\(x\)"),
            ([1.0] * D_IN, r"use torch\.as_tensor\(x\)"),
        ],
    )
    def test_inputs_of_the_wrong_form_are_refused(self, x, words):
        sae = self.make()
        for read in (sae, sae.encode):
            with pytest.raises(ValueError, match=words):
                read(x)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_encode_refuses_what_is_not_finite_and_says_where(self, value, tmp_path):
        sae, x = self.make(), self.inputs()
        x[4, 2] = value
        with pytest.raises(ValueError, match="1 of 32 inputs hold NaN or Inf, the first is number 4"):
            sae.encode(x)
        for name in ("atoms", "bias"):
            sae = self.make()
            with torch.no_grad():
                getattr(sae, name)[..., 0] = value
            with pytest.raises(ValueError, match=f"the {name} must be finite; "):
                sae.encode(self.inputs())
            with pytest.raises(ValueError, match=f"the {name} must be finite; "):
                sae.save(tmp_path / "nowhere")
            assert not list(tmp_path.iterdir())

    def test_k_and_stop_are_refused_together_and_so_is_none(self):
        sae, x = self.make(), self.inputs()
        with pytest.raises(ValueError, match="one of k and stop"):
            sae.encode(x, k=2, stop=3)
        with pytest.raises(ValueError, match="one of k and stop"):
            sae.at()
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(ValueError, match="k must be a whole number ≥ 1"):
                sae.at(k=wrong)
        assert torch.equal(sae.encode(x, k=np.int64(2)).values, sae.encode(x, k=2).values)

    def test_codes_of_another_width_are_refused(self):
        sae = self.make()
        with pytest.raises(ValueError, match=f"of 9 atoms, this SAE has {D_SAE}"):
            sae.decode(Codes.from_dense(torch.randn(2, 9)))
        with pytest.raises(ValueError, match=f"of 9 atoms, this SAE has {D_SAE}"):
            sae.decode(torch.randn(2, 9))

    # Frozen.

    def test_frozen_reads_the_same_and_notices_a_change(self):
        sae, x = self.learn(self.make()).eval(), self.inputs()
        expected = sae.encode(x).values
        with sae.frozen(), sae.frozen() as same:
            assert same is sae
            assert torch.equal(sae.encode(x).values, expected)
        with pytest.raises(RuntimeError, match="changed inside frozen"), sae.frozen(), torch.no_grad():
            sae.atoms.mul_(1.0)
        with pytest.raises(RuntimeError, match="changed inside frozen"), sae.frozen():
            sae.load_state_dict(copy.deepcopy(sae.state_dict()), assign=True)
        with sae.frozen():
            other = copy.deepcopy(sae)
        with torch.no_grad():
            other.atoms[0, 0] = torch.nan
        with pytest.raises(ValueError, match="must be finite"):
            other.encode(x)
        with torch.inference_mode():
            made_in_inference = self.make()
            with made_in_inference.frozen():
                made_in_inference.encode(x)
        assert torch.equal(sae.encode(x).values, expected)  # and is not stuck

"""The laws of data, written once for every source."""

from itertools import islice

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from mpsae.data.data import Data, Stream
from mpsae.data.synthetic import Tree

ROWS, D_IN = 103, 4


def matrix():
    return torch.arange(ROWS * D_IN, dtype=torch.float32).reshape(ROWS, D_IN)


class StreamLaws:
    """`make()` gives data; they hold for every source."""

    def make(self, folder, **options) -> Data:
        raise NotImplementedError

    @pytest.fixture
    def data(self, tmp_path):
        return self.make(tmp_path)

    def test_a_stream_resumes_at_the_next_batch_past_the_end_of_an_epoch(self, data):
        expected = [batch.x for batch in islice(data.stream(7, seed=3), 60)]
        for stop in (0, 1, 13, 14, 29, 45):
            stream = data.stream(7, seed=3)
            assert isinstance(stream, Stream)
            for _ in islice(stream, stop):
                pass
            other = data.stream(7, seed=3)
            other.load_state_dict(stream.state_dict())
            for expect, batch in zip(expected[stop:], other, strict=False):
                assert torch.equal(batch.x, expect)

    def test_the_state_is_of_what_was_handed_out_whatever_is_read_ahead(self, data):
        stream = data.stream(7)
        for number, _ in enumerate(islice(stream, 9)):
            assert stream.state_dict()["batches"] == number + 1

    def test_the_seed_decides_the_order(self, data):
        first, same, other = (next(iter(data.stream(20, seed=seed))).x for seed in (1, 1, 2))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)

    def test_a_position_of_another_stream_is_refused(self, data):
        state = data.stream(7, seed=1).state_dict()
        for stream in (data.stream(7, seed=2), data.stream(8, seed=1)):
            with pytest.raises(ValueError, match="of another stream"):
                stream.load_state_dict(state)

    def test_the_fingerprint_is_of_the_content(self, data, tmp_path):
        (tmp_path / "again").mkdir()
        assert data.fingerprint() == self.make(tmp_path / "again").fingerprint()
        assert data.fingerprint() != Data(torch.randn(ROWS, D_IN)).fingerprint()

    def test_batches_are_of_the_width_of_the_data(self, data):
        batch = next(iter(data.stream(5)))
        assert batch.x.shape == (5, data.d_in)


class RowLaws(StreamLaws):
    def test_each_training_row_comes_once_an_epoch_and_held_out_rows_never(self, data):
        held_out = {int(row) for batch in data.once(10) for row in batch.rows}
        assert len(held_out) == int(ROWS * 0.05)
        training = ROWS - len(held_out)
        seen = torch.cat([batch.rows for batch in islice(data.stream(7), 3 * training)])  # seven times three epochs
        assert len(seen) == 21 * training
        for epoch in seen.split(training):
            assert sorted(epoch.tolist()) == sorted(set(range(ROWS)) - held_out)
        assert seen[:training].tolist() != seen[training : 2 * training].tolist()

    def test_rows_tell_which_they_are(self, data):
        for batch in islice(data.stream(7), 40):
            assert torch.equal(batch.x.float(), matrix()[batch.rows])

    def test_once_is_every_row_once_in_stored_order(self, data):
        parts = {rows: torch.cat([b.rows for b in data.once(10, rows=rows)]) for rows in ("held_out", "train", "all")}
        assert torch.equal(parts["all"], torch.arange(ROWS))
        for rows in parts.values():
            assert (rows.diff() > 0).all()
        assert sorted([*parts["held_out"].tolist(), *parts["train"].tolist()]) == list(range(ROWS))
        assert sum(len(b.x) for b in data.once(10, rows="all", count=25)) == 25

    def test_the_split_is_not_the_seed_of_the_run(self, data, tmp_path):
        one, same = (torch.cat([b.rows for b in Data(matrix()).once(50)]) for _ in range(2))
        other = torch.cat([b.rows for b in Data(matrix(), split_seed=1).once(50)])
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


class TestTensor(RowLaws):
    def make(self, folder, **options):
        return Data(matrix(), **options)


class TestNpy(RowLaws):
    def make(self, folder, **options):
        np.save(folder / "x.npy", matrix().numpy())
        return Data(folder / "x.npy", **options)


class TestSafetensors(RowLaws):
    def make(self, folder, **options):
        save_file({"x": matrix()}, folder / "x.safetensors")
        return Data(str(folder / "x.safetensors"), **options)


class TestGenerator(StreamLaws):
    def make(self, folder, **options):
        return Data(Tree(0.2), **options)

    def test_what_it_is_judged_by_is_drawn_from_other_seeds(self, data):
        judged = torch.cat([batch.x for batch in data.once(100, count=250)])
        assert judged.shape == (250, 20)
        assert torch.equal(judged, torch.cat([batch.x for batch in data.once(100, count=250)]))
        trained = torch.cat([batch.x for batch in islice(data.stream(100), 30)])
        seen = {tuple(row) for row in trained.tolist()}
        assert not any(tuple(row) in seen for row in judged.tolist())
        with pytest.raises(ValueError, match="say how many with count"):
            next(data.once(100))

    def test_the_answer_travels_with_the_data(self, data):
        batch = next(iter(data.stream(50)))
        torch.testing.assert_close(batch.x, batch.labels["z"] @ Tree(0.2).atoms)


class TestGenerators(StreamLaws):
    def make(self, folder, **options):
        return Data([Tree(0.2), Tree(0.4)], **options)

    def test_batches_are_of_the_width_of_the_data(self, data):
        assert next(iter(data.stream(5))).x.shape == (2, 5, 20)

    def test_each_run_gets_what_it_would_get_alone(self, data):
        batch = next(iter(data.stream(50, seed=3)))
        for r, tree in enumerate((Tree(0.2), Tree(0.4))):
            alone = next(iter(Data(tree).stream(50, seed=3 + r)))
            assert torch.equal(batch.x[r], alone.x)
            assert torch.equal(batch.labels["z"][r], alone.labels["z"])


def test_labels_come_with_their_rows():
    labels = {"kind": torch.arange(ROWS), "pair": torch.randn(ROWS, 2)}
    for batch in islice(Data(matrix(), labels=labels).stream(9), 20):
        assert torch.equal(batch.labels["kind"], batch.rows)
        assert torch.equal(batch.labels["pair"], labels["pair"][batch.rows])
    assert next(Data(matrix(), labels=torch.arange(ROWS)).once(3)).labels.keys() == {"label"}


def test_held_out_rows_may_be_a_source_of_their_own():
    data = Data(matrix(), held_out=-matrix()[:30])
    assert sum(len(batch.x) for batch in data.once(10)) == 30
    assert all((batch.x <= 0).all() for batch in data.once(10))
    assert sum(len(batch.x) for batch in data.once(10, rows="train")) == ROWS


def test_a_batch_may_be_larger_than_an_epoch():
    data = Data(matrix()[:5], held_out=0.0)
    rows = next(iter(data.stream(12))).rows
    assert sorted(rows[:5].tolist()) == sorted(rows[5:10].tolist()) == list(range(5))


def test_a_stream_can_be_left_and_taken_up_again():
    data = Data(matrix())
    expected = [batch.rows for batch in islice(data.stream(7), 9)]
    stream = data.stream(7)
    seen = [batch.rows for _ in range(3) for batch in islice(stream, 3)]
    assert all(torch.equal(one, other) for one, other in zip(expected, seen, strict=True))


def test_an_error_while_reading_ahead_reaches_the_one_who_reads():
    class Broken:
        d_in = 3

        def sample(self, count, generator):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(iter(Data(Broken()).stream(4)))


def test_a_torch_loader_gives_batches_too():
    loader = DataLoader(TensorDataset(matrix()), batch_size=10)
    assert sum(len(x) for (x,) in loader) == ROWS


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Data(torch.randn(3)), r"matrix \[rows, d_in\]; got torch.float32 \[3\]"),
        (lambda: Data(torch.ones(3, 2).long()), "torch.int64"),
        (lambda: Data([]), "data come from"),
        (lambda: Data([1, 2]), "data come from"),
        (lambda: Data("x.csv"), "neither"),
        (lambda: Data(matrix(), held_out=1.0), r"share in \[0, 1\)"),
        (lambda: Data(matrix(), held_out=torch.randn(3, 9)), "as wide as"),
        (lambda: Data(matrix(), labels=torch.ones(3)), "one entry a row; got 3 for 103 rows"),
        (lambda: Data(Tree(), labels=torch.ones(3)), "for none rows"),
        (lambda: Data(matrix()).stream(0), "batch_size must be"),
        (lambda: next(Data(matrix(), held_out=0.0).once(5)), "no rows of the kind 'held_out'"),
        (lambda: Data(matrix()).once(5, rows="some"), "rows must be one of"),
        (lambda: Data(torch.randn(0, 3)).stream(2), "no row to train on"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()

import pytest
import torch

from mpsae import Codes

LEADING = [(), (6,), (2, 3), (0,), (2, 0)]


def some_codes(leading=(6,), k=5, d_sae=7, order="pursuit"):
    """Picks with repeats and unused slots; whole numbers, so that sums are exact."""
    lengths = torch.randint(0, k + 1, leading, dtype=torch.int32)
    used = torch.arange(k) < lengths[..., None]
    values = torch.randint(-4, 5, (*leading, k)).float()
    values = torch.where(values == 0, 5.0, values).where(used, 0.0)
    indices = torch.randint(d_sae, (*leading, k)).where(used, 0).int()
    return Codes(values, indices, lengths, d_sae, order)


def dense_of(codes):
    """The meaning, by loops."""
    flat = torch.zeros(codes.lengths.numel(), codes.d_sae)
    k = codes.values.shape[-1]
    rows = zip(
        codes.values.reshape(len(flat), k), codes.indices.reshape(len(flat), k), codes.lengths.flatten(), strict=True
    )
    for row, (values, indices, length) in enumerate(rows):
        for value, index in zip(values[:length].tolist(), indices[:length].tolist(), strict=True):
            flat[row, index] += value
    return flat.reshape(*codes.lengths.shape, codes.d_sae)


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("k", [0, 1, 5])
def test_every_method_is_its_dense_meaning(leading, k):
    codes = some_codes(leading, k)
    dense = dense_of(codes)
    assert torch.equal(codes.dense(), dense)
    assert torch.equal(codes.sparse().to_dense(), dense.reshape(-1, 7))
    assert torch.equal(codes.l0(), (dense != 0).sum(-1).int())
    assert torch.equal(codes.counts(), (dense != 0).reshape(-1, 7).sum(0))
    assert torch.equal(codes.used.sum(-1).int(), codes.lengths)
    assert torch.equal(codes.merged().dense(), dense)
    for t in range(k + 2):
        top, prefix = codes.top(t), codes.prefix(t)
        keep = dense.abs().sort(dim=-1, descending=True, stable=True)
        expected = torch.zeros_like(dense).scatter(-1, keep.indices[..., :t], dense.gather(-1, keep.indices[..., :t]))
        assert torch.equal(top.dense(), expected)
        assert top.order == "magnitude"
        assert prefix.order == "pursuit"
        assert torch.equal(prefix.lengths, codes.lengths.clamp(max=t))
        assert torch.equal(prefix.dense(), dense_of(prefix))


@pytest.mark.parametrize("leading", LEADING)
def test_from_dense_and_back(leading):
    dense = torch.randn(*leading, 9) * (torch.rand(*leading, 9) < 0.4)
    codes = Codes.from_dense(dense)
    assert torch.equal(codes.dense(), dense)
    assert codes.indices.dtype == torch.int32
    assert codes.order == "magnitude"
    if codes.values.shape[-1]:
        assert (codes.values.abs().diff(dim=-1) <= 0).all()
    two = Codes.from_dense(dense, 2)
    assert two.values.shape[-1] == 2
    assert torch.equal(two.dense(), codes.top(2).dense())


def test_from_dense_keeps_no_more_than_there_are_atoms():
    assert Codes.from_dense(torch.randn(3, 4), 9).values.shape == (3, 4)


def test_half_precision_becomes_float32():
    assert Codes.from_dense(torch.randn(3, 4).bfloat16()).values.dtype == torch.float32


def test_dense_is_differentiable():
    codes = some_codes()

    def dense(values):
        return Codes(values, codes.indices, codes.lengths, codes.d_sae, "pursuit").dense()

    assert torch.autograd.gradcheck(dense, codes.values.double().requires_grad_())


@pytest.mark.parametrize("method", ["dense", "merged", "top", "prefix", "sparse"])
def test_gradients_reach_the_values_that_are_read(method):
    codes = some_codes()
    values = codes.values.double().requires_grad_()
    codes = Codes(values, codes.indices, codes.lengths, codes.d_sae, "pursuit")
    read = {
        "dense": codes.dense,
        "merged": lambda: codes.merged().values,
        "top": lambda: codes.top(9).values,
        "prefix": lambda: codes.prefix(9).values,
        "sparse": lambda: codes.sparse().to_dense(),
    }[method]()
    gradient = torch.autograd.grad(read.square().sum(), values)[0]
    expected = torch.autograd.grad(codes.dense().square().sum(), values)[0]
    if method == "prefix":
        expected = 2 * values
    torch.testing.assert_close(gradient.where(codes.used, 0.0), expected.where(codes.used, 0.0))


def test_from_dense_sends_no_gradient_through_unused_slots():
    dense = torch.tensor([[0.0, 2.0, 0.0], [1.0, 3.0, 0.0]], requires_grad=True)
    Codes.from_dense(dense, 2).values.sum().backward()
    assert dense.grad.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_atoms_that_add_up_to_nothing_do_not_count():
    codes = Codes(torch.tensor([2.0, -2.0, 1.0]), torch.tensor([4, 4, 2]).int(), torch.tensor(3).int(), 6, "pursuit")
    assert codes.merged().values.tolist() == [1, 0, 0]
    assert codes.merged().indices[0] == 2
    assert codes.l0() == 1
    assert codes.counts().tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_is_cat_of_the_dense(dim):
    a, b = some_codes((2, 3), 4), some_codes((2, 3), 2)
    joined = Codes.cat([a, b], dim)
    assert joined.values.shape[-1] == 4
    assert torch.equal(joined.dense(), torch.cat([a.dense(), b.dense()], dim % 2))


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1, None), (0, 1), (slice(None), 0), (..., 1), [1, 0], torch.tensor([1, 1]), None,
     torch.tensor([[True, False, True], [False, True, True]])],
    ids=str,
)  # fmt: skip
def test_indexing_is_indexing_of_the_dense(index):
    codes = some_codes((2, 3))
    lengths, dense = codes.lengths[index], codes.dense()
    parts = index if isinstance(index, tuple) else (index,)
    expected = dense[(*parts, slice(None))] if any(part is ... for part in parts) else dense[index]
    assert torch.equal(codes[index].dense(), expected)
    assert torch.equal(codes[index].lengths, lengths)


def test_an_index_cannot_reach_into_the_slots():
    with pytest.raises(IndexError):
        some_codes((2, 3))[0, 0, 0]


def test_len_is_of_the_first_leading_dimension():
    assert len(some_codes((4, 2))) == 4
    with pytest.raises(TypeError, match="number of picks"):
        len(some_codes(()))


def test_to_moves_all_and_casts_values_alone():
    codes = some_codes().to(torch.float64)
    assert codes.values.dtype == torch.float64
    assert codes.indices.dtype == torch.int32
    moved = codes.to("meta")
    assert moved.values.device == moved.indices.device == moved.lengths.device == torch.device("meta")


def test_detach_leaves_the_graph():
    values = torch.ones(2, 1, requires_grad=True)
    codes = Codes(values, torch.zeros(2, 1).int(), torch.ones(2).int(), 3, "pursuit")
    assert not codes.detach().values.requires_grad


def test_codes_travel_through_vmap():
    dense = torch.randn(4, 3, 6)
    codes = torch.vmap(lambda rows: Codes.from_dense(rows, 2))(dense)
    assert torch.equal(codes.dense(), Codes.from_dense(dense, 2).dense())


def test_a_prefix_of_orthogonal_codes_is_refused_and_top_is_not():
    codes = some_codes(order="orthogonal")
    with pytest.raises(ValueError, match="encode again with k=steps"):
        codes.prefix(2)
    assert codes.top(2).order == "magnitude"


def test_a_prefix_of_magnitude_codes_is_their_top():
    codes = Codes.from_dense(torch.randn(5, 6))
    assert torch.equal(codes.prefix(2).dense(), codes.top(2).dense())


def test_what_makes_no_sense_is_refused():
    values, indices, lengths = torch.zeros(3, 2), torch.zeros(3, 2).int(), torch.zeros(3).int()
    with pytest.raises(ValueError, match="'pursuit', 'orthogonal', 'magnitude'"):
        Codes(values, indices, lengths, 4, "sorted")
    with pytest.raises(ValueError, match=r"lengths \[3, 2\]"):
        Codes(values, indices, indices, 4, "pursuit")
    with pytest.raises(ValueError, match=r"use indices\.int\(\)"):
        Codes(values, indices.long(), lengths, 4, "pursuit")
    with pytest.raises(ValueError, match=r"use values\.float\(\)"):
        Codes(values.half(), indices, lengths, 4, "pursuit")
    with pytest.raises(ValueError, match=r"use values\.float\(\)"):
        Codes(values, indices, lengths, 4, "pursuit").to(torch.bfloat16)
    with pytest.raises(ValueError, match="at least one Codes"):
        Codes.cat([])
    with pytest.raises(ValueError, match=r"\.merged\(\) first"):
        Codes.cat([some_codes(), Codes.from_dense(torch.randn(2, 7))])
    with pytest.raises(ValueError, match="dim 1"):
        Codes.cat([some_codes()], 1)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="≥ 0"):
            some_codes().prefix(wrong)
        with pytest.raises(ValueError, match="≥ 0"):
            some_codes().top(wrong)


def test_codes_say_what_they_are():
    assert repr(some_codes((2, 3))) == "Codes([2, 3, 5] of 7 atoms, pursuit order, torch.float32, cpu)"

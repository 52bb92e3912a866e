import pytest
import torch

from mpsae.data.synthetic import Tree


@pytest.mark.parametrize("similarity", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_concepts_are_similar_within_a_level_and_orthogonal_across(similarity):
    atoms = Tree(similarity, seed=2).atoms.double()
    expected = torch.eye(20, dtype=torch.float64)
    for group in (Tree.parents, *Tree.siblings):
        for i in group:
            for j in group:
                if i != j:
                    expected[i, j] = similarity
    torch.testing.assert_close(atoms @ atoms.T, expected, rtol=0, atol=1e-6)


def test_inputs_are_one_parent_and_at_times_one_of_its_children():
    tree = Tree(0.2)
    x, z = tree.sample(200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x, z @ tree.atoms)
    active = z != 0
    assert (active[:, list(Tree.parents)].sum(-1) == 1).all()
    for parent, children in zip(Tree.inner, Tree.siblings, strict=True):
        fires = active[:, list(children)].sum(-1)
        assert fires.max() == 1
        assert active[fires > 0, parent].all()
        assert active[:, parent].float().mean().item() == pytest.approx(0.2, abs=0.005)
        assert active[:, list(children)].float().mean(0).tolist() == pytest.approx([0.04] * 3, abs=0.003)
    assert active[:, 12:].float().mean(0).tolist() == pytest.approx([0.05] * 8, abs=0.003)
    assert active.sum(-1).float().mean().item() == pytest.approx(1.36, abs=0.01)
    magnitudes = z[active]
    assert magnitudes.mean().item() == pytest.approx(1.5, abs=0.005)
    assert magnitudes.std().item() == pytest.approx(0.25, abs=0.005)


def test_the_generator_decides_the_inputs():
    tree = Tree()
    one, same, other = (tree.sample(9, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("similarity", [-0.1, 1.0, 2.0])
def test_a_cosine_that_cannot_be_is_refused(similarity):
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        Tree(similarity)

import torch

from mpsae.ops.runs import as_table


def test_atoms_of_all_runs_are_one_table_without_a_copy():
    atoms = torch.randn(3, 5, 4)
    table, start = as_table(atoms)
    assert table.data_ptr() == atoms.data_ptr()
    index = torch.randint(5, (3, 7))
    assert torch.equal(table[index + start], torch.stack([atoms[r][index[r]] for r in range(3)]))


def test_shared_atoms_stay_one_copy():
    atoms = torch.randn(5, 4)
    table, start = as_table(atoms.expand(3, 5, 4))
    assert table.shape == (5, 4)
    assert table.data_ptr() == atoms.data_ptr()
    assert not start.any()

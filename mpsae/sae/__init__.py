"""Sparse autoencoders: the contract in `contract.py`, then one file an SAE."""

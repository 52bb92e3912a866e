"""Sparse autoencoders that find hierarchical structure in neural representations, by matching pursuit."""

__version__ = "0.1.0"

from mpsae.codes import Codes
from mpsae.ops.pursuit import Pursuit, Stop, pursue
from mpsae.sae.contract import SAE, Encoding, Output
from mpsae.sae.folder import load
from mpsae.sae.matching_pursuit import MatchingPursuitSAE
from mpsae.sae.runs import Runs

__all__ = ["SAE", "Codes", "Encoding", "MatchingPursuitSAE", "Output", "Pursuit", "Runs", "Stop", "load", "pursue"]

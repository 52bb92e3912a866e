"""Sparse autoencoders that find hierarchical structure in neural representations, by matching pursuit."""

__version__ = "0.1.0"

from mpsae.codes import Codes
from mpsae.data.data import Batch, Data
from mpsae.ops.pursuit import Pursuit, Stop, pursue
from mpsae.sae.batchtopk import BatchTopKSAE
from mpsae.sae.contract import SAE, Encoding, Output
from mpsae.sae.controllers import Steering
from mpsae.sae.folder import load
from mpsae.sae.jumprelu import JumpReLUSAE
from mpsae.sae.losses import Auxiliary, Revival
from mpsae.sae.matching_pursuit import MatchingPursuitSAE
from mpsae.sae.matryoshka import MatryoshkaSAE
from mpsae.sae.orthogonal_pursuit import OrthogonalPursuitSAE
from mpsae.sae.relu import ReLUSAE
from mpsae.sae.reseed import Reseed, clear_moments_
from mpsae.sae.runs import Runs
from mpsae.sae.topk import TopKSAE
from mpsae.schedules import LearningRate, Points
from mpsae.training import TrainConfig, Training, Update

__all__ = [
    "SAE",
    "Auxiliary",
    "Batch",
    "BatchTopKSAE",
    "Codes",
    "Data",
    "Encoding",
    "JumpReLUSAE",
    "LearningRate",
    "MatchingPursuitSAE",
    "MatryoshkaSAE",
    "OrthogonalPursuitSAE",
    "Output",
    "Points",
    "Pursuit",
    "ReLUSAE",
    "Reseed",
    "Revival",
    "Runs",
    "Steering",
    "Stop",
    "TopKSAE",
    "TrainConfig",
    "Training",
    "Update",
    "clear_moments_",
    "load",
    "pursue",
]

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # a name that is looked up would hang for long before it fails

# Sizes are small, and two processes with two threads each wait for one another for ever.
torch.set_num_threads(1)

# Examples follow from the test alone, so that a red test is red for everybody.
settings.register_profile("mpsae", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mpsae")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)

"""The SAE that CONTRIBUTING.md adds, as it stands there, keeps every law."""

import re
import textwrap
from pathlib import Path

import pytest

from mpsae.sae import folder

from .laws import D_IN, D_SAE, K, Laws

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAMES = {"__name__": "contributing"}
exec(textwrap.dedent(re.search(r"^ *```python\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1]), NAMES)


class TestSpike(Laws):
    @pytest.fixture(autouse=True)
    def _known_to_load(self, monkeypatch):
        monkeypatch.setitem(folder.KINDS, "spike", NAMES["SpikeSAE"])

    def make(self, seed=0, **options):
        return NAMES["SpikeSAE"](D_IN, D_SAE, K, seed=seed, **options)

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_a_page_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    """A ```python block runs; the ```text block that follows it is its output, to the letter."""
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, shown in re.findall(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", text, re.M | re.S):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        if shown:
            assert printed.getvalue() == shown
        else:
            assert not printed.getvalue(), "output that the page does not show"


def test_the_readme_opens_with_the_two_commands():
    first = blocks(ROOT / "README.md", "sh")[0]
    assert "make demo" in first
    assert "make test" in first


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_package_module_has_a_test_or_a_reason():
    """Tests mirror the package: path for path."""
    reasons = {
        "__init__.py", "ops/__init__.py", "sae/__init__.py", "data/__init__.py",  # no code
        "ops/pursuit/__init__.py",  # tests/ops/pursuit/test_pursuit.py
        "sae/contract.py",  # tests/sae/laws.py, which every variant inherits
        "checks.py",  # through every refusal
        "ops/forward_mode.py",  # through every operator
    }  # fmt: skip
    modules = {str(path.relative_to(ROOT / "mpsae")) for path in (ROOT / "mpsae").rglob("*.py")}
    for module in sorted(modules - reasons):
        folder, name = os.path.split(module)
        assert (ROOT / "tests" / folder / f"test_{name}").exists(), f"mpsae/{module} has no tests/{folder}/test_{name}"

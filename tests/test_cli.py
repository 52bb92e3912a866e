import subprocess
import sys

import pytest

import mpsae
from mpsae import cli


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "mpsae.cli", *arguments], capture_output=True, text=True)


def test_the_demo_is_a_command(tmp_path):
    done = run("demo", "--out", str(tmp_path), "--updates", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"The report is at {tmp_path / 'report.html'}"


def test_the_version_is_a_flag(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mpsae", "--version"])
    cli.main()
    assert capsys.readouterr().out == f"mpsae {mpsae.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--updates", "0"], "updates must be a whole number ≥ 1; got 0"),
        (["--similarity", "1.5"], "in [0, 1); got 1.5"),
        (["--out", "/dev/null/demo"], "/dev/null"),
    ],
)
def test_an_error_is_one_line(arguments, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mpsae", "demo", "--updates", "2", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert str(stop.value).startswith("mpsae: ")
    assert words in str(stop.value)
    assert "\n" not in str(stop.value)

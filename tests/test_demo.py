import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode

import pytest
import torch

import mpsae
from mpsae import demo, plots
from mpsae.data.synthetic import Tree


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a short training; made once."""
    folder = tmp_path_factory.mktemp("demo")
    path = demo.write(folder, updates=600)
    assert path == folder / "report.html"
    return path


def test_the_report_is_self_contained(page):
    html = page.read_text(encoding="utf-8")
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert len(links) == 3
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    for link in links:
        picture = b64decode(link.split(",")[1]).decode()
        ElementTree.fromstring(picture)
        assert not re.findall(r"""href=["'](?!#|data:)""", picture)
    assert "<script" not in html


def test_the_report_says_what_the_sae_beside_it_does(page):
    html = page.read_text(encoding="utf-8")
    sae = mpsae.load(page.parent / "sae")
    assert sae.updates == 600
    (batch,) = mpsae.Data(Tree(0.2, 0)).once(demo.HELD_OUT, count=demo.HELD_OUT)
    x = batch.x
    r2 = demo.r_squared(x, x - sae.decode(sae.encode(x)))
    assert f"<b>{r2:.4f}</b>" in html
    assert "600 updates" in html
    assert f"mpsae demo --out {page.parent} --updates 600 --similarity 0.2 --seed 0" in html
    assert f"mpsae.load(&quot;{page.parent / 'sae'}&quot;)" in html


def test_without_matplotlib_the_numbers_are_still_written(tmp_path, monkeypatch, capsys):
    from mpsae import cli

    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    cli.demo(tmp_path, updates=20)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in html
    assert "concepts found" in html
    lines = capsys.readouterr().out.splitlines()
    assert "pip install 'mpsae[plots]'" in lines[-2]
    assert lines[-1] == f"The report is at {tmp_path / 'report.html'}"


def test_off_a_terminal_it_says_how_far_it_is(tmp_path, capsys):
    threads = torch.get_num_threads()
    demo.write(tmp_path, updates=1000)
    assert "1000 of 1000 updates: R² " in capsys.readouterr().out
    assert torch.get_num_threads() == threads


def test_the_rate_warms_up_stays_and_cools_down_to_a_tenth():
    rates = [demo.rate(update, 1000) for update in range(1000)]
    assert rates[0] == 0.01
    assert rates[99] == rates[500] == rates[800] == 1.0
    assert rates[900] == pytest.approx(0.55)
    assert rates[999] == pytest.approx(0.1, abs=0.005)


def test_r_squared_is_one_for_the_truth_and_zero_for_the_mean():
    x = torch.randn(50, 4)
    assert demo.r_squared(x, torch.zeros_like(x)) == 1
    assert demo.r_squared(x, x - x.mean(0)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_finds_the_whole_tree(tmp_path, seed):
    html = demo.write(tmp_path, seed=seed).read_text(encoding="utf-8")
    assert "<b>20 of 20</b>" in html

"""A page that holds all it shows: no request to anywhere, readable on a phone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light; --ink: #1d2430; --soft: #5b6573; --line: #e3e7ec; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 .4rem; }
p { margin: .2rem 0 .8rem; max-width: 46rem; }
.lead { color: var(--soft); font-size: 1.05rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem; margin: 1.6rem 0; }
.number, section { background: #fff; border: 1px solid var(--line); border-radius: .6rem; }
.number { padding: .9rem 1.1rem; }
.number b { display: block; font-size: 1.55rem; line-height: 1.2; color: var(--accent); }
.number span { color: var(--soft); font-size: .88rem; }
section { padding: 1.3rem 1.4rem; margin: 1.1rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; margin: .4rem auto; }
table { border-collapse: collapse; font-size: .93rem; }
th, td { text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
code { font: .9em ui-monospace, Menlo, Consolas, monospace; background: #eef1f4; padding: .1em .3em; }
pre { background: #1d2430; color: #e8edf3; padding: .9rem 1.1rem; border-radius: .5rem; overflow-x: auto; }
pre code { background: none; padding: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, what to see, and any of a picture, a table, code."""

    title: str
    text: str = ""
    picture: str | None = None
    """SVG text."""
    alt: str = ""
    """What the picture shows, for those who do not see it."""
    table: Sequence[tuple[str, str]] = ()
    code: str = ""

    def html(self) -> str:
        """The section as HTML; every text is escaped."""
        parts = [f"<h2>{escape(self.title)}</h2>"]
        if self.text:
            parts.append(f"<p>{escape(self.text)}</p>")
        if self.picture is not None:
            data = base64.b64encode(self.picture.encode()).decode()
            parts.append(f'<img alt="{escape(self.alt)}" src="data:image/svg+xml;base64,{data}">')
        if self.table:
            rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self.table)
            parts.append(f"<table>{rows}</table>")
        if self.code:
            parts.append(f"<pre><code>{escape(self.code)}</code></pre>")
        return "<section>" + "\n".join(parts) + "</section>"


def page(title: str, lead: str, numbers: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """The whole page; `numbers` are (figure, what it is), shown large."""
    tiles = "".join(f"<div class=number><b>{escape(n)}</b><span>{escape(what)}</span></div>" for n, what in numbers)
    body = "\n".join(section.html() for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n'
        f'<div class="numbers">{tiles}</div>\n{body}\n</main></body></html>\n'
    )

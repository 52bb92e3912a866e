from base64 import b64decode
from html.parser import HTMLParser

from mpsae.report import Section, page


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order."""

    void = frozenset({"meta", "img"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_text_is_escaped_and_every_tag_closed():
    nasty = "<b> & \"quotes\" 'too'</section>"
    section = Section(nasty, nasty, "<svg/>", nasty, [(nasty, nasty)], nasty)
    html = page(nasty, nasty, [(nasty, nasty)], [section, section])
    parser = Balanced()
    parser.feed(html)
    assert not parser.open
    assert nasty not in html
    assert (
        html.count("&lt;b&gt; &amp; &quot;quotes&quot;") == 5 + 2 * 6
    )  # title twice, lead, number, what it is; six parts a section


def test_a_picture_is_carried_whole():
    html = Section("title", picture="<svg>é</svg>").html()
    data = html.split("base64,")[1].split('"')[0]
    assert b64decode(data).decode() == "<svg>é</svg>"


def test_a_section_without_a_part_leaves_it_out():
    assert Section("title").html() == "<section><h2>title</h2></section>"

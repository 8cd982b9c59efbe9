"""The page as a parser reads it, where there is no browser."""

from collections import Counter
from html.parser import HTMLParser

from click.testing import CliRunner
from page_runs import HOSTILE, write_runs

from hpcfl.cli.report import command


class Reader(HTMLParser):
    """Counts the elements, and notes those that are not closed in their order."""

    def __init__(self):
        super().__init__()
        self.count = Counter()
        self.open = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.count[tag] += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_runs_nothing_that_a_file_holds(tmp_path):
    write_runs(tmp_path)
    path = tmp_path / "page.html"
    result = CliRunner().invoke(command, [str(tmp_path), "--html", str(path)])
    page = Reader()
    page.feed(path.read_text(encoding="utf-8"))

    assert result.exit_code == 0
    assert page.open == []
    assert not page.count.keys() & {"script", "img", "iframe", "link"}
    assert page.text.count(HOSTILE) >= 4  # as protocol, option, environment and command
    assert page.count["caption"] == page.count["table"] > 20
    assert page.count["svg"] == page.count["figcaption"] == 8
    assert page.count["h3"] == 5

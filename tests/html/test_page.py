"""The page as a parser reads it, where there is no browser."""

from collections import Counter
from html.parser import HTMLParser

from click.testing import CliRunner
from page_runs import HOSTILE, write_run, write_runs

from hpcfl.cli.report import command

BUSY = {"transport": "mpi", "ranks": 3, "cores_usable": 2, "before_load_1min": 9.0}


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


def test_warnings_stand_in_the_summary_and_commands_start_the_ranks(tmp_path):
    for name in "abcd":  # more than are shown unfolded
        write_run(tmp_path / f"{name}.h5", dim=ord(name), facts=BUSY)
    path = tmp_path / "page.html"
    assert CliRunner().invoke(command, [str(tmp_path), "--html", str(path)]).exit_code == 0
    text = path.read_text(encoding="utf-8")
    summary = text[: text.index("<h2>Runs</h2>")]

    assert "rows 1 to 4: a load of 9.0 on 2 cores" in summary
    assert summary.count('class="number doubtful" title="a load of 9.0 on 2 cores') == 4
    assert text.count("mpirun -n 3 hpcfl bench plain") == 4

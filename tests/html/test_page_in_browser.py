"""The page as a browser shows it."""

import io

import numpy as np
import pytest
from chromium import Chromium, find
from click.testing import CliRunner
from matplotlib import image
from page_runs import HOSTILE, write_runs

from hpcfl.cli.report import command

PROGRAM = find()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium: apt-get install chromium (or google-chrome)"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder)
    path = folder / "page.html"
    result = CliRunner().invoke(command, [str(folder), "--html", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def pixels(browser, path):
    browser.screenshot(path)
    return image.imread(path)[:, :, :3]


def test_it_loads_nothing_and_reports_no_error(browser, page):
    browser.open(page)

    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert asked == [page.as_uri()]
    assert browser.happened("Log.entryAdded") == []
    assert browser.happened("Runtime.exceptionThrown") == []
    assert browser.happened("Runtime.consoleAPICalled") == []


def test_what_a_file_holds_is_shown_and_not_run(browser, page):
    browser.open(page)

    assert browser.value("window.owned") is None
    assert browser.value("document.querySelectorAll('script, img, iframe, link').length") == 0
    # Shown where it stands: as protocol, option, environment and command.
    text = browser.value("document.body.textContent")
    assert text.count(HOSTILE) >= 4


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser, page, width):
    browser.open(page, width)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")

    assert browser.value("document.documentElement.scrollWidth") == width
    outside = browser.value(
        "[...document.querySelectorAll('h1, h2, h3, p, pre, svg, .pairs, figcaption')]"
        ".filter(one => one.getBoundingClientRect().right > innerWidth).length"
    )
    assert outside == 0


def test_the_summary_fits_a_window_of_1280_pixels(browser, page):
    browser.open(page)

    hidden = "one => one.scrollWidth - one.clientWidth"
    assert browser.value(f"[...document.querySelectorAll('.wide')].map({hidden})[0]") == 0


def test_every_figure_is_seen_and_described(browser, page):
    browser.open(page)
    found = browser.value(
        "[...document.querySelectorAll('svg')].map(one => ({box: one.getBoundingClientRect()"
        ".toJSON(), label: one.getAttribute('aria-label'), caption: one.closest('figure')"
        ".querySelector('figcaption').textContent}))"
    )

    assert len(found) == 8
    for figure in found:
        assert figure["box"]["width"] > 300
        assert figure["box"]["height"] > 150
        assert figure["label"] == figure["caption"]
    assert len({figure["label"] for figure in found}) == 8


def test_no_name_is_given_twice_and_every_one_asked_for_is_there(browser, page):
    browser.open(page)
    ids = browser.value("[...document.querySelectorAll('[id]')].map(one => one.id)")
    uses = browser.value(
        "[...document.querySelectorAll('use')].map(one => one.href.baseVal.slice(1))"
    )

    assert len(ids) == len(set(ids)) > 100
    assert set(uses) <= set(ids)
    assert len(uses) > 100


def test_tables_have_headers_and_headings_are_in_order(browser, page):
    browser.open(page)
    lacking = browser.value(
        "[...document.querySelectorAll('table')].filter(one => !one.caption ||"
        " !one.querySelector('th[scope]')).length"
    )
    levels = browser.value("[...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName)")

    assert lacking == 0
    assert levels[:4] == ["H1", "H2", "H2", "H2"]
    assert levels.count("H1") == 1
    assert levels[4:] == ["H3"] * 5
    assert browser.value("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, page, tmp_path, scheme):
    browser.open(page, scheme=scheme)
    top = pixels(browser, tmp_path / "page.png")[:200]
    ground = np.median(top.reshape(-1, 3), axis=0)
    farthest = np.abs(top - ground).mean(axis=2).max()

    assert ground.mean() > 0.9 if scheme == "light" else ground.mean() < 0.2
    assert farthest > 0.7


def test_figures_are_painted(browser, page, tmp_path):
    browser.open(page)
    shown = pixels(browser, tmp_path / "page.png")
    boxes = browser.value(
        "[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().toJSON())"
    )

    for box in boxes:
        top, left = int(box["top"]), int(box["left"])
        part = shown[top : top + int(box["height"]), left : left + int(box["width"])]
        assert 0.01 < (part.mean(axis=2) < 0.9).mean() < 0.6


def test_it_prints_with_its_folded_parts(browser, page, tmp_path):
    browser.open(page)
    folded = len(browser.pdf())
    browser.value("document.querySelectorAll('details').forEach(one => one.remove())")

    # The parts are folded on the screen, and are on paper all the same.
    assert io.BytesIO(browser.pdf()).read(4) == b"%PDF"
    assert folded > len(browser.pdf()) + 5000

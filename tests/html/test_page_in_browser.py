"""The page as a browser shows it."""

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
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def pixels(browser, path):
    browser.screenshot(path)
    return image.imread(path)[:, :, :3]


def of_all(browser, selector, what):
    """Return an expression's value for every element, which it calls `one`."""
    return browser.value(f"[...document.querySelectorAll('{selector}')].map(one => {what})")


def test_it_loads_and_runs_nothing_and_reports_no_error(browser, page):
    browser.open(page)

    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert asked == [page.as_uri()]
    for kind in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert browser.happened(kind) == []
    assert browser.value("window.owned") is None
    # Shown where it stands: as protocol, option, environment and command.
    assert browser.value("document.body.textContent").count(HOSTILE) >= 4


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser, page, width):
    browser.open(page, width)
    summary = of_all(browser, ".wide", "one.scrollWidth - one.clientWidth")[0]
    of_all(browser, "details", "one.open = true")
    right = "one.getBoundingClientRect().right"
    edges = of_all(browser, "h1, h2, h3, p, pre, svg, .pairs, figcaption", right)

    assert browser.value("document.documentElement.scrollWidth") == width
    assert max(edges) <= width
    assert summary == 0 or width < 1280


def test_every_figure_is_painted_and_described(browser, page, tmp_path):
    browser.open(page)
    boxes = of_all(browser, "svg", "one.getBoundingClientRect().toJSON()")
    labels = of_all(browser, "svg", "one.getAttribute('aria-label')")
    caption = "one.closest('figure').querySelector('figcaption').textContent"
    shown = pixels(browser, tmp_path / "page.png")

    assert len(boxes) == len(set(labels)) == 8
    assert of_all(browser, "svg", caption) == labels
    for box in boxes:
        assert box["width"] > 300
        assert box["height"] > 150
        top, left = int(box["top"]), int(box["left"])
        part = shown[top : top + int(box["height"]), left : left + int(box["width"])]
        assert 0.01 < (part.mean(axis=2) < 0.9).mean() < 0.6


def test_no_name_is_given_twice_and_every_one_asked_for_is_there(browser, page):
    browser.open(page)
    ids = of_all(browser, "[id]", "one.id")
    uses = of_all(browser, "use", "one.href.baseVal.slice(1)")

    assert len(ids) == len(set(ids)) > 100
    assert set(uses) <= set(ids)
    assert len(uses) > 100


def test_tables_have_headers_and_headings_are_in_order(browser, page):
    browser.open(page)

    assert all(of_all(browser, "table", "one.caption && one.querySelector('th[scope]') && true"))
    levels = of_all(browser, "h1, h2, h3", "one.tagName")
    assert levels == ["H1", "H2", "H2", "H2", *["H3"] * 5]
    assert browser.value("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, page, tmp_path, scheme):
    browser.open(page, scheme=scheme)
    top = pixels(browser, tmp_path / "page.png")[:200]
    ground = np.median(top.reshape(-1, 3), axis=0)

    assert ground.mean() > 0.9 if scheme == "light" else ground.mean() < 0.2
    assert np.abs(top - ground).mean(axis=2).max() > 0.7


def test_it_prints_with_its_folded_parts(browser, page):
    browser.open(page)
    folded = browser.pdf()
    of_all(browser, "details", "one.remove()")

    # The parts are folded on the screen, and are on paper all the same.
    assert folded.startswith(b"%PDF")
    assert len(folded) > len(browser.pdf()) + 5000

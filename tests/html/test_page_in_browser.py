"""The page as a browser shows it: Chromium without a window, one start for every look."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib import image
from page_runs import HOSTILE, write_runs

from hpcfl.cli.report import command

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium"),
]
# What is asked of the page: expressions in JavaScript; `all` maps elements to values.
QUESTIONS = {
    "owned": "window.owned || null",
    "text": "document.body.textContent",
    "loaded": "performance.getEntriesByType('resource').length",
    "lang": "document.documentElement.lang",
    "width": "document.body.scrollWidth",
    "height": "document.documentElement.scrollHeight",
    "hidden": "all('.wide', one => one.scrollWidth - one.clientWidth)",
    "edges": "all('h1, h2, h3, p, pre, svg, .pairs, figcaption', one => box(one).right)",
    "boxes": "all('svg', one => box(one))",
    "labels": "all('svg', one => one.getAttribute('aria-label'))",
    "captions": "all('svg', one => one.closest('figure').querySelector('figcaption').textContent)",
    "ids": "all('[id]', one => one.id)",
    "uses": "all('use', one => one.href.baseVal.slice(1))",
    "headed": "all('table', one => !!(one.caption && one.querySelector('th[scope]')))",
    "levels": "all('h1, h2, h3', one => one.tagName)",
}
SCRIPT = """<script>
const all = (selector, what) => [...document.querySelectorAll(selector)].map(what);
const box = one => one.getBoundingClientRect().toJSON();
const width = %d;  // of a window, which the program has none of below 500 pixels
document.documentElement.style.width = width + 'px';
if (%s) all('details', one => one.open = true);
const found = {%s};
document.title = JSON.stringify(found);
</script>"""


def look(page, *options, size=(1280, 900)):
    """Start the browser with a page, and return what it prints."""
    words = (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-dev-shm-usage", "--disable-background-networking"),
        *(f"--user-data-dir={page.parent / 'profile'}", f"--window-size={size[0]},{size[1]}"),
    )
    done = subprocess.run([PROGRAM, *words, *options, page.as_uri()], capture_output=True)
    return done.stdout.decode()


def ask(page, width=1280, unfold=False):
    """Return the answers to all questions, of a copy that may run the script which asks them."""
    text = page.read_text(encoding="utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', text)[0]
    assert "default-src 'none'" in policy
    asked = ", ".join(f"{name}: {question}" for name, question in QUESTIONS.items())
    script = SCRIPT % (width, json.dumps(unfold), asked)
    copy = page.with_name("asked.html")
    copy.write_text(
        text.replace(policy, "").replace("</body>", f"{script}</body>"), encoding="utf-8"
    )
    shown = look(copy, "--dump-dom")
    return json.loads(html.unescape(re.search("<title>(.*?)</title>", shown)[1]))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder)
    path = folder / "page.html"
    result = CliRunner().invoke(command, [str(folder), "--html", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def found(page):
    return ask(page)


def test_it_loads_and_runs_nothing_that_a_file_holds(found):
    assert (found["owned"], found["loaded"]) == (None, 0)
    # Shown where it stands: as protocol, option, environment and command.
    assert found["text"].count(HOSTILE) >= 4


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(page, width):
    found = ask(page, width, unfold=True)

    assert found["width"] <= width
    assert max(found["edges"]) <= width
    assert found["hidden"][0] == 0 or width < 1280  # the summary


def test_no_name_is_given_twice_and_every_one_asked_for_is_there(found):
    assert len(found["ids"]) == len(set(found["ids"])) > 100
    assert set(found["uses"]) <= set(found["ids"])
    assert len(found["uses"]) > 100


def test_figures_are_described_tables_have_headers_and_headings_are_in_order(found):
    assert len(set(found["labels"])) == 8
    assert found["captions"] == found["labels"]
    assert all(found["headed"])
    assert found["levels"] == ["H1", "H2", "H2", "H2", *["H3"] * 5]
    assert found["lang"] == "en"


@pytest.mark.parametrize(("scheme", "number"), [("light", 1), ("dark", 0)])
def test_text_and_figures_stand_out_from_their_ground(page, found, tmp_path, scheme, number):
    options = (f"--blink-settings=preferredColorScheme={number}", f"--screenshot={tmp_path}/a.png")
    look(page, *options, size=(1280, found["height"]))
    shown = image.imread(tmp_path / "a.png")[:, :, :3]
    ground = np.median(shown[:200].reshape(-1, 3), axis=0)

    assert ground.mean() > 0.9 if scheme == "light" else ground.mean() < 0.2
    assert np.abs(shown[:200] - ground).mean(axis=2).max() > 0.7
    for box in found["boxes"]:
        assert box["width"] > 300
        assert box["height"] > 150
        top, left = int(box["top"]), int(box["left"])
        part = shown[top : top + int(box["height"]), left : left + int(box["width"])]
        assert 0.01 < (part.mean(axis=2) < 0.9).mean() < 0.6


def test_it_prints_with_its_folded_parts(page):
    short = page.with_name("short.html")
    short.write_text(re.sub("(?s)<details.*?</details>", "", page.read_text(encoding="utf-8")))
    sizes = []
    for path in (page, short):
        look(path, f"--print-to-pdf={path}.pdf", "--no-pdf-header-footer")
        sizes.append(path.with_name(f"{path.name}.pdf").stat().st_size)

    # The parts are folded on the screen, and are on paper all the same.
    assert sizes[0] > sizes[1] + 5000

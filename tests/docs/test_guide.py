"""docs/guide.md names protocols as they declare themselves."""

import re
from pathlib import Path

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.options.bench import BenchOptions

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")


def test_the_protocols_that_take_threads_are_those_that_say_so():
    (named,) = re.findall(r"`--threads T` lets[^,]*, in ([^;]*);", GUIDE)

    assert {*re.findall("`([^`]+)`", named)} == {
        name for name in PROTOCOLS if "threads" in find(name).uses(BenchOptions(name))
    }

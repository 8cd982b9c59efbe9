"""docs/protocols.md says what the protocols declare."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.plan import read
from hpcfl.sweeping.shipped import locate

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "protocols.md").read_text()


def test_its_table_of_exchanges_is_that_of_the_steps():
    script = ROOT / "benchmarks" / "protocols.py"
    done = subprocess.run(
        [sys.executable, script, "--exchanges"], capture_output=True, text=True, check=True
    )
    (found,) = re.findall("<!-- exchanges -->\n(.*?)<!-- /exchanges -->", TEXT, re.DOTALL)
    assert done.stdout.strip() == found.strip()


def test_every_protocol_is_in_each_of_its_tables():
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
    assert len(tables) >= 5
    for table in tables:
        rows = re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)
        assert {*rows} >= {*PROTOCOLS}, table.splitlines()[0]


def test_no_share_that_is_not_0_is_shown_as_0():
    spec = importlib.util.spec_from_file_location("shown", ROOT / "benchmarks" / "protocols.py")
    shown = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shown)

    shares = (0.0, 2e-21, 1.5e-4, 0.3889, 1.0)
    assert [*map(shown.percent, shares)] == ["0", "< 0.001 %", "0.015 %", "38.9 %", "100.0 %"]


def test_its_sweep_plays_every_protocol_with_100_and_1000_devices():
    cells = resolve(read(locate("protocols")))
    played = {(cell.protocol, cell.devices) for cell in cells}
    assert {(name, devices) for name in PROTOCOLS for devices in (100, 1000)} <= played

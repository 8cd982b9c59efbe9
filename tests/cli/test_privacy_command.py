import json

import pytest
from commandline import invoke

from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.masking import InCohorts
from hpcfl.privacy.population import Population


def rows(result):
    """Return the table: the label, and the last four columns."""
    lines = [line for line in result.stdout.splitlines() if len(line.split()) > 4]
    return {" ".join(line.split()[:-4]): line.split()[-4:] for line in lines}


def test_table_shows_formula_simulation_and_difference():
    result = invoke("privacy", "exposure", "sparse", "--dropout", 0, "--simulated", 5000)
    table = rows(result)
    alone = table["exposed alone, of what it sends"]
    formula, simulation, margin, difference = map(float, alone)

    assert result.exit_code == 0
    assert "devices N     100, of which 33 collude with the server" in result.stdout
    assert "theta = 0, exact; 67 honest survivors on average" in result.stdout
    assert table["SparseSecAgg's T (Theorem 2)"] == ["6.376", "-", "-", "-"]
    assert alone[0] == "0.3223"
    assert abs(difference) < 2.5 * margin < 0.05
    assert simulation - formula == pytest.approx(difference, abs=1e-4)
    assert table["exposed alone, as a count"][0] == "5063"
    assert table["a device's count of these"][0] == "64.12"
    assert table["sent values in a set of 2"][0] == "0.614"
    assert "sent values in a set of 5 to 8" in table


def test_json_is_what_the_library_returns():
    options = (
        "--devices 30 --alpha 0.5 --dropout 0.2 --degree 4 --dropout-model bernoulli --colluding 7 "
        "--dim 1000 --floor 3 --simulated 200 --seed 5 --json"
    )
    result = invoke("privacy", "exposure", "cohort", *options.split())
    found = exposure("cohort", InCohorts(15, 4, 0.5), Population(30, 7, 0.2, "bernoulli"),
                     dim=1000, floor=3, samples=200, seed=5)  # fmt: skip

    assert json.loads(result.stdout) == found.as_dict()


@pytest.mark.parametrize(
    ("arguments", "colluding"),
    [
        ([], 33),
        (["--gamma", "1/4"], 25),
        (["--gamma", "0.29"], 29),
        (["--colluding", "0"], 0),
        (["--devices", "99"], 33),
    ],
)
def test_colluding_devices(arguments, colluding):
    result = invoke("privacy", "exposure", "sparse", "--simulated", 10, "--json", *arguments)

    assert json.loads(result.stdout)["colluding"] == colluding


def test_cohorts_report_their_floor():
    table = rows(invoke("privacy", "exposure", "cohort", "--floor", 2, "--simulated", 100))

    assert table["a cohort has fewer than 2 contributors"][0] == "0.01412"
    assert table["any of 100 cohorts has, at most, fewer than 2 contributors"][0] == "0.9589"
    assert table["sent values in a set below 2"][0] == "0.002744"


def test_a_graph_shows_its_degree_and_no_formula_it_has_not():
    result = invoke(
        *("privacy", "exposure"),
        *("secagg-graph", "--devices", 50, "--degree", 6, "--simulated", 100),
    )

    assert "masks         between a device and 6 neighbours\n" in result.stdout
    assert rows(result)["anonymity set of a sent value, mean"][0] == "-"
    assert "Theorem 2" not in result.stdout
    assert "alpha " not in result.stdout


def test_nothing_to_estimate_from_is_a_dash():
    table = rows(invoke("privacy", "exposure", "sparse", "--alpha", 1e-9, "--simulated", 10))

    assert table["exposed alone, of what it sends"][1:] == ["-", "-", "-"]

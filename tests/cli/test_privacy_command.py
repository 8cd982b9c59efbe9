import json

import pytest
from commandline import invoke

from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.masking import InCohorts
from hpcfl.privacy.population import Population


def test_table_shows_formula_and_simulation():
    result = invoke("privacy", "exposure", "sparse", "--dropout", 0, "--simulated", 5000)
    lines = [line.rsplit(None, 3) for line in result.stdout.splitlines() if line]
    table = {line[0].strip(): line[1:] for line in lines if len(line) == 4}
    formula, simulation, margin = map(float, table["exposed alone, of what it sends"])

    assert result.exit_code == 0
    assert "devices N     100, of which 33 collude with the server" in result.stdout
    assert table["SparseSecAgg's T (Theorem 2)"] == ["6.376", "-", "-"]
    assert formula == 0.3223
    assert abs(simulation - formula) < 2.5 * margin < 0.05
    assert "sent values in a set of 5 to 8" in table


def test_json_is_what_the_library_returns():
    options = (
        "--devices 30 --alpha 0.5 --dropout 0.2 --degree 4 --dropout-model bernoulli --colluding 7 "
        "--dim 1000 --floor 3 --simulated 200 --seed 5 --json"
    )
    result = invoke("privacy", "exposure", "cohort", *options.split())
    found = exposure("cohort", InCohorts(15, 4, 0.5), Population(30, 7, 0.2, "bernoulli"),
                     dim=1000, floor=3, samples=200, seed=5)  # fmt: skip

    assert json.loads(result.stdout) == json.loads(json.dumps(found.as_dict()))


@pytest.mark.parametrize(
    ("arguments", "colluding"), [([], 33), (["--gamma", "1/4"], 25), (["--colluding", "0"], 0)]
)
def test_colluding_devices(arguments, colluding):
    result = invoke("privacy", "exposure", "sparse", "--simulated", 10, "--json", *arguments)

    assert json.loads(result.stdout)["colluding"] == colluding

"""What is said of the contents of a results file is said of all that files hold."""

import re
from pathlib import Path

import h5py
import pytest

import hpcfl
from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.federated import REGISTRY
from hpcfl.results import attributes, schema
from hpcfl.results.schema import DeviceMetric, Metric

SMALL = {"devices": 20, "dim": 100, "rounds": 1, "warmup": 0}
# What makes each a run of a round or two.
NEEDS = {"cdp": {"steps": 2}}


def undocumented(path):
    """Return the attributes of a file that nothing is said of."""
    known = {
        "/": {*schema.HEADER, *schema.AT_END, *schema.ADDED},
        schema.CONFIG: {*attributes.config()},
        schema.ENVIRONMENT: {*attributes.ENVIRONMENT},
    }
    with h5py.File(path) as file:
        return {f"{group}: {name}" for group in known for name in file[group].attrs} - {
            f"{group}: {name}" for group, names in known.items() for name in names
        }


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "dp-fedavg"])
def test_every_attribute_that_bench_writes_is_described(protocol, tmp_path):
    if protocol == "ckks":
        pytest.importorskip("tenseal")
    given = {}
    if protocol in PROTOCOLS:
        given = {"threads": 2} if "threads" in find(protocol).uses(_options(protocol)) else {}
    run = hpcfl.bench(protocol, **SMALL, **given, note="a note", output=tmp_path / "run.h5")

    assert not undocumented(run.path)


def _options(protocol):
    from hpcfl.options.bench import BenchOptions
    from hpcfl.rounds.build import without_dropouts

    return BenchOptions(protocol, **without_dropouts(protocol, {}))


@pytest.mark.parametrize("algorithm", REGISTRY)
def test_every_attribute_that_train_writes_is_described(algorithm, tmp_path):
    pytest.importorskip("torch")
    private = {"noise_multiplier": 1.0} if REGISTRY[algorithm].kind == "private" else {}
    run = hpcfl.train(
        algorithm,
        devices=20,
        rounds=1,
        output=tmp_path / "run.h5",
        **private,
        **NEEDS.get(algorithm, {}),
    )

    assert not undocumented(run.path)


def test_every_environment_fact_is_written_by_somebody(tmp_path):
    """Nothing is described that there is not: what MPI and labs add is in their modules."""
    run = hpcfl.bench("secagg", **SMALL, output=tmp_path / "run.h5")
    with h5py.File(run.path) as file:
        written = {*file[schema.ENVIRONMENT].attrs}
    package = Path(hpcfl.__file__).parent
    adding = ("comm/world.py", "netlab/lab.py")
    sources = "".join((package / name).read_text(encoding="utf-8") for name in adding)
    for name in attributes.ENVIRONMENT.keys() - written:
        assert f'"{name}"' in sources, name
    assert {*re.findall(r'"(netlab_\w+)":', sources)} <= {*attributes.ENVIRONMENT}


def test_every_dataset_and_metric_is_described():
    described = (*schema.KNOWN, schema.MARKED, *Metric, *DeviceMetric)
    assert all(one.about for one in described)

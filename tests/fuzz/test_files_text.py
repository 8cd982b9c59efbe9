"""Texts that have the form of a file but any values: readers return what they promise or refuse."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from hpcfl.costmodel import calibration
from hpcfl.errors import HpcflError
from hpcfl.learning import adult, leaf
from hpcfl.reproduce.store import Store
from hpcfl.sweeping import manifest, plan

EXAMPLES = settings(
    max_examples=examples(150),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["secagg", "a", "a.h5", "../a.h5", "--dim=3", "now", "0.5"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def mostly(known):
    """Return what is right nine times of ten, and else anything."""
    return st.integers(0, 9).flatmap(lambda roll: values if roll == 9 else known)


def document(*names, **known):
    """Return objects with the names, mostly, whose values are right, mostly."""
    whole = st.fixed_dictionaries({name: mostly(known.get(name, values)) for name in names})
    lacking = st.lists(st.sampled_from(names), max_size=1)
    without = st.tuples(whole, lacking).map(
        lambda drawn: {name: one for name, one in drawn[0].items() if name not in drawn[1]}
    )
    return mostly(st.integers(0, 2).flatmap(lambda roll: without if roll == 2 else whole))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    # Lone surrogates, which text may have and UTF-8 may not.
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def refuses(path, error):
    assert str(path) in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


counts = st.integers(0, 9)
cells = document(
    *("index", "id", "file", "arguments", "protocol", "devices", "dim", "rounds", "repeat"),
    index=st.just(0),
    id=st.just("00ff"),
    file=st.just("a.h5"),
    arguments=st.just(["secagg", "--dim=3"]),
    protocol=st.just("secagg"),
    **dict.fromkeys(("devices", "dim", "rounds", "repeat"), counts),
)


@EXAMPLES
@given(
    document(
        *("schema", "plan", "seed", "created", "version", "cells"),
        schema=st.just(manifest.SCHEMA),
        plan=st.text(max_size=3),
        seed=counts,
        created=st.text(max_size=3),
        version=st.text(max_size=3),
        cells=st.lists(cells, max_size=2),
    )
)
def test_manifests(tmp_path, content):
    path = write(tmp_path / manifest.NAME, content)
    try:
        found = manifest.load(tmp_path)
    except HpcflError as error:
        refuses(path, error)
        return

    assert found is not None
    for index, cell in enumerate(found.cells):
        assert cell.index == index
        assert (tmp_path / cell.file).parent == tmp_path
        assert cell.devices > 0 < cell.dim
        assert all(isinstance(argument, str) for argument in cell.arguments)


@EXAMPLES
@given(
    document(
        *("format", "about", "ranks", "links", "devices_slowdown", "server_slowdown"),
        "cpu_seconds",
        format=st.just(calibration.FORMAT),
        ranks=counts,
        links=st.dictionaries(st.text(max_size=3), st.lists(st.floats(), max_size=3)),
        devices_slowdown=st.floats(),
        server_slowdown=st.floats(),
        cpu_seconds=st.dictionaries(st.text(max_size=3), st.lists(st.floats(), max_size=2)),
    )
)
def test_calibrations(tmp_path, content):
    path = write(tmp_path / "c.json", content)
    # No generated file has a sample for every operation.
    with pytest.raises(HpcflError) as caught:
        calibration.load(path)
    refuses(path, caught.value)


writers = document(
    *("x", "y"), x=st.just([[0.5] * 784]), y=st.sampled_from([[-1], [0], [61], [62], [1, 2]])
)


@EXAMPLES
@given(
    document(
        *("users", "num_samples", "user_data"),
        users=st.just(["a"]),
        num_samples=st.just([1]),
        user_data=document("a", a=writers),
    )
)
def test_writers(tmp_path, content):
    path = write(tmp_path / "femnist" / "train" / "a.json", content)
    try:
        images, labels, numbers = leaf._read_part(tmp_path, "train")
    except HpcflError as error:
        refuses(path, error)
        return

    assert len(images) == len(labels) == len(numbers) > 0
    assert ((labels >= 0) & (labels < leaf.CLASSES)).all()
    assert ((images >= 0) & (images <= 1)).all()


@EXAMPLES
@given(
    document("results", results=st.lists(document("setting", "found", setting=st.just({"a": 1}))))
)
def test_stores(tmp_path, content):
    path = write(tmp_path / "some.json", content)
    try:
        Store(tmp_path, "some")
    except HpcflError as error:
        refuses(path, error)


fields = st.sampled_from(["40", "-1", "Private", "", "?", " ", ">50K", "<=50K.", "1e9", "9" * 12])


@EXAMPLES
@given(st.lists(st.lists(fields | st.text(max_size=3), max_size=16).map(",".join), max_size=4))
def test_people(tmp_path, rows):
    path = write(tmp_path / "adult" / "adult.data", "\n".join(rows))
    try:
        columns, labels = adult._read_rows(tmp_path, "adult.data", 2)
    except HpcflError as error:
        refuses(path, error)
        return

    assert {len(column) for column in columns.values()} == {len(labels)} == {2}


def toml(value):
    """Return a value in TOML, as far as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
        )
    if isinstance(value, float):
        return str(value)
    return json.dumps(value)


options = st.dictionaries(
    st.sampled_from(["dim", "alpha", "dropout", "rounds", "seed", "clip", "group", "updates", "x"]),
    st.lists(scalars, max_size=3) | values,
    max_size=3,
)


@EXAMPLES
@given(options, options, st.integers(-1, 3))
def test_plans(tmp_path, fixed, grid, repeats):
    lines = ["[fixed]", *(f"{name} = {toml(value)}" for name, value in fixed.items()), "[grid]"]
    lines += ['protocol = ["secagg", "fedavg"]', "devices = [5, 7]", f"repeats = {repeats}"]
    lines += [f"{name} = {toml(value)}" for name, value in grid.items()]
    path = write(tmp_path / "plan.toml", "\n".join(lines))
    try:
        found = plan.read(path)
    except HpcflError as error:
        refuses(path, error)
        return

    for setting in found:
        assert setting.arguments[0] in ("secagg", "fedavg")
        assert setting.repeats == repeats > 0
        plan.parse(setting.arguments)


@EXAMPLES
@given(
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "ignore"))
)
def test_any_bytes(tmp_path, content):
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(HpcflError) as caught:
        plan.read(path)
    refuses(path, caught.value)

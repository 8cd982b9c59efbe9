"""The page of what a results file holds, from the schema that writer and reader share."""

from __future__ import annotations

import numpy as np

from hpcfl.results import record, schema
from hpcfl.results.record import KNOWN, StoredDataset
from sitepages import attributes
from sitepages.markdown import code, table, words

_AXES = {"device or server": "N + 1", "device": "N", "phase": "P", "rank": "ranks", "helper": "K"}
_GROUPS = (
    ("In every file", ""),
    ("Of `hpcfl bench`: what ranks did with their time and memory", record.RANK_TIMES),
    ("Of runs under `mpirun --with-ft ulfm`", record.FAILURES),
    ("Of protocols with helpers", record.HELPERS),
    ("Of protocols with a committee", record.COMMITTEE),
    ("Of devices that are not alike (`--population`)", record.POPULATION),
)


def page() -> str:
    """Return the page."""
    parts = [
        "# Contents of a results file\n",
        f"This page lists all attributes and datasets of schema `{schema.SCHEMA}`, with R rounds, "
        "P phases, N devices and K helpers. [The results file](../method.md#the-results-file) "
        "explains how files are written and read.\n",
        "## Attributes of `/`\n",
        _attributes(schema.HEADER),
        "## Attributes of `/config`\n",
        "A file has every option of its command, defaults included, and the values that the run "
        f"chose. Missing values and options without effect are `{schema.NONE}`.\n",
        _attributes(dict(sorted(attributes.config().items()))),
        "## Attributes of `/environment`\n",
        "Unless stated otherwise, these describe the host of rank 0. Attributes with obvious names "
        "are left out. `before_` and `after_` have a number for each host.\n",
        _attributes(attributes.ENVIRONMENT),
        f"## Datasets of `/{schema.ROUNDS}`\n",
        "The first axis of each is the round. A dataset has `NaN` only if its row says so.\n",
    ]
    for title, of in _GROUPS:
        datasets = tuple(one for one in (*KNOWN, schema.MARKED) if one.of == of)
        parts += [f"### {title}\n", _datasets(datasets)]
    parts += [
        f"## Datasets of `/{schema.TRAINING}`\n",
        "Of `hpcfl train`; float64 (R).\n",
        table(
            ("dataset", "what it is"),
            [(code(one), words(one.about)) for one in schema.Metric],
        ),
        "## Others\n",
        table(
            ("where", "type, shape", "what it is"),
            [
                (code(f"/{schema.PHASES}"), "text (P)", "names of the phases, in order"),
                (
                    code(f"/{schema.ENROLMENT}/{schema.PHASES}, {schema.ROUNDS}/..."),
                    "as of rounds",
                    "the enrolment before the first round of the last launch, as one round",
                ),
                (
                    code(f"/{schema.POPULATION}/..."),
                    "float64 (N)",
                    "links and processors of the devices: uplink_mbps, downlink_mbps, latency_ms "
                    "and compute",
                ),
                (
                    code(f"/{schema.PARTITION}"),
                    "int64 (N, classes)",
                    "samples of every device and class; of `hpcfl train`, unless the algorithm is "
                    "private",
                ),
                (
                    f"`/{schema.RESUMED}/1`, `/{schema.RESUMED}/2`, ...",
                    "attributes",
                    f"of each launch that went on with the run: `command`, `started`, "
                    f"`{schema.FIRST_ROUND}`, and what `/environment` says of the first",
                ),
            ],
        ),
    ]
    return "\n".join(parts)


def _attributes(about: dict[str, str]) -> str:
    return table(("attribute", "what it says"), [(code(k), words(v)) for k, v in about.items()])


def _datasets(datasets: tuple[StoredDataset, ...]) -> str:
    rows = [
        (
            code(one.name),
            f"{np.dtype(one.dtype).name} ({', '.join(['R', *(_AXES[axis] for axis in one.axes)])})",
            "" if one.unit == "1" else one.unit,
            words(one.about),
        )
        for one in datasets
    ]
    return table(("dataset", "type, shape", "unit", "what it is"), rows)

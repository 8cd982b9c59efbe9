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
)


def page() -> str:
    """Return the page."""
    parts = [
        "# Contents of a results file\n",
        f"Schema `{schema.SCHEMA}`, every attribute and dataset. How a file comes about and is "
        "read: [The results file](../method.md#the-results-file). R is the number of rounds, P "
        "that of phases, N that of devices, K that of helpers.\n",
        "## Attributes of `/`\n",
        _attributes(schema.HEADER),
        "## Attributes of `/config`\n",
        "Every option with its value, defaults included, and what a run has chosen. A file has "
        f"those of its command; an option that has no effect is `{schema.NONE}`, and so is a "
        "value that there is not.\n",
        _attributes(dict(sorted(attributes.config().items()))),
        "## Attributes of `/environment`\n",
        "Of rank 0's host, where it is not said otherwise; those that their names do not explain. "
        "`before_` and `after_` have a number for each host.\n",
        _attributes(attributes.ENVIRONMENT),
        f"## Datasets of `/{schema.ROUNDS}`\n",
        "The first axis of each is the round. `NaN` is a value only where it is said.\n",
    ]
    for title, of in _GROUPS:
        datasets = [one for one in (*KNOWN, schema.MARKED) if one.of == of]
        parts += [f"### {title}\n", _datasets(datasets)]
    parts += [
        f"## Datasets of `/{schema.TRAINING}`\n",
        "Of `hpcfl train`; float64. `device_loss` is there with `device_loss`.\n",
        table(
            ("dataset", "shape", "what it is"),
            [
                *((code(one), "(R)", words(one.about)) for one in schema.Metric),
                *((code(one), "(R, N)", words(one.about)) for one in schema.DeviceMetric),
            ],
        ),
        "## Others\n",
        table(
            ("where", "type, shape", "what it is"),
            [
                (code(f"/{schema.PHASES}"), "text (P)", "names of the phases, in order"),
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

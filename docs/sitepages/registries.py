"""Pages of what comes with hpcfl by name: protocols, algorithms, presets, plans, data sets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import cleandoc
from itertools import groupby
from typing import Any

from hpcfl.algorithms import aggregation, federated
from hpcfl.algorithms.aggregation import active_variant
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.ranges import Dealt
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.comm.phases import Pattern, Role, Step
from hpcfl.errors import UsageError
from hpcfl.learning import models
from hpcfl.options.bench import DEFAULT_DIM, BenchOptions
from hpcfl.options.definition import options_of
from hpcfl.options.names import DATASETS, FILES
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.build import build, without_dropouts
from hpcfl.sweeping import shipped
from hpcfl.training import presets
from sitepages.markdown import block, code, table, words

# The round whose promises are shown: the defaults of `hpcfl bench` for as many devices.
DEVICES, DIM = 100, DEFAULT_DIM
_PARTIES = {Role.DEVICE: "devices", Role.HELPER: "helpers", Role.COMMITTEE: "committee"}


def protocols() -> str:
    """Return the page of the aggregation protocols, from what their classes declare."""
    rows = [
        (f"[`{name}`](#{name})", words(known.about), code(known.home.replace(":", ".")))
        for name, known in aggregation.PROTOCOLS.items()
    ]
    parts = [
        "# Aggregation protocols\n",
        "All commands use what the class of a protocol declares. "
        "[Your own protocol](../own-protocol.md) explains the declarations, and "
        "[protocols](../protocols.md) how the protocols work and what they cost.\n",
        table(("protocol", "what it is", "class"), rows),
        *(_protocol(name, known.about) for name, known in aggregation.PROTOCOLS.items()),
    ]
    return "\n".join(parts)


def _protocol(name: str, about: str) -> str:
    kind = aggregation.find(name)
    options = BenchOptions(name, **without_dropouts(name, {}))
    used = [name for group in kind.options[1:] for name in options_of(group)]
    own = ", ".join(f"[`--{dashed(one)}`](commands/bench.md#bench-{dashed(one)})" for one in used)
    enrolment = kind.enrolment(2, kind.default_helpers)
    parts = [f"## {name}\n", words(_capital(about)) + ".\n", prose(kind)]
    if enrolment is not None:
        parts += ["**Once, before the first round**\n", _exchanges(enrolment.steps)]
    parts += ["**In a round**\n", _exchanges(kind.steps)]
    rows = [(words(what), words(said)) for what, said in _declared(kind)]
    parts += [table(("declared", ""), rows)]
    parts += [f"Its options of `hpcfl bench`, besides those of all protocols: {own or 'none'}.\n"]
    parts += [_promises(name, options)]
    return "\n".join(parts)


def _exchanges(steps: Iterable[Step]) -> str:
    rows = []
    for phase, some in groupby(steps, lambda step: step.phase):
        for step in some:
            marks = [
                ("the vectors", step.upload),
                ("only where the server asks", step.wants is not None),
            ]
            rows.append(
                (code(phase), _who(step), "; ".join(text for text, is_so in marks if is_so))
            )
    return table(("phase", "who sends to whom", "what of it"), rows)


def _who(step: Step) -> str:
    party = _PARTIES[step.role]
    return {
        Pattern.BROADCAST: f"server to {party}, one message for all",
        Pattern.SCATTER: f"server to {party}, one message each",
        Pattern.GATHER: f"{party} to server",
        Pattern.ROUTE: f"{party} to {_PARTIES[step.to]}, a row each",
        Pattern.LOCAL: "nobody: the server works alone",
    }[step.pattern]


def _declared(kind: type[AggregationProtocol]) -> list[tuple[str, str]]:
    """Return what a class declares, in words."""
    active = active_variant(kind)
    helpers = f"{kind.default_helpers}, at most {kind.most_helpers}"
    return [
        ("fewest devices", str(kind.min_devices)),
        ("devices may drop out", _yes(kind.tolerates_dropouts)),
        ("an upload has only some coordinates", _yes(kind.sparse_upload)),
        ("all devices send the same coordinates", _yes(kind.same_coordinates)),
        ("the server can have several ranks", _yes(_dealt_out(kind))),
        ("helpers", helpers if kind.most_helpers else "no"),
        ("a committee in each round", _yes(kind.has_committee)),
        ("the noises of devices add up in the sum", _yes(kind.noise_adds_up)),
        ("devices learn the sum itself", _yes(kind.devices_learn_sum)),
        ("--security active", _yes(active is not None)),
        ("who masks a coordinate with whom", "declared" if _masks(kind) else "not declared"),
        ("the attack on a recorded round", _yes(issubclass(kind, SecAgg))),
    ]


def _masks(kind: type[AggregationProtocol]) -> bool:
    return any("masking" in vars(one) for one in kind.mro() if one is not AggregationProtocol)


def _dealt_out(kind: type[AggregationProtocol]) -> bool:
    options = BenchOptions(kind.name, **without_dropouts(kind.name, {}))
    protocol, _ = build(kind.name, options, DEVICES, DIM)
    try:
        Dealt.uploads_of(protocol, 2)
    except UsageError:
        return False
    return True


def _promises(name: str, options: BenchOptions) -> str:
    protocol, _ = build(name, options, DEVICES, DIM)
    claims = [f"- {words(one.claim)}" for one in protocol.promises()]
    promised = f"Promised of a round of {DEVICES} devices with the default options"
    return f"{promised}: nothing.\n" if not claims else "\n".join([f"{promised}:\n", *claims, ""])


def algorithms() -> str:
    """Return the page of the federated algorithms."""
    rows = [
        (f"[`{name}`](#{name})", words(known.about), known.kind, code(known.home.replace(":", ".")))
        for name, known in federated.REGISTRY.items()
    ]
    head = ("algorithm", "what it is", "kind", "class")
    parts = [
        "# Federated algorithms\n",
        "A federated algorithm of `hpcfl train` decides who takes part in a round and what each "
        "device contributes. [Privacy](../privacy.md) explains the accounts of the private ones.\n",
        table(head, rows),
    ]
    for name, known in federated.REGISTRY.items():
        parts += [f"## {name}\n", words(_capital(known.about)) + ".\n", _algorithm(name)]
    return "\n".join(parts)


def _algorithm(name: str) -> str:
    kind = federated.find(name)
    groups, typed = kind.options, options_of(TrainOptions)
    own = ", ".join(_of_train(one) for group in groups for one in options_of(group) if one in typed)
    rows = [
        ("noise in every local step", _yes(kind.noisy_steps)),
        ("an account of its privacy", _yes(kind.private)),
        ("some coordinates are left out", _yes(kind.leaves_out)),
    ]
    options = f"Its options of local training and of privacy: {own or 'none'}.\n"
    return "\n".join([prose(kind), table(("declared", ""), rows), options])


def training() -> str:
    """Return the page of data sets, models and presets."""
    sets = [
        (
            code(name),
            "files" if name in FILES else "none",
            code(kind.model),
        )
        for name, kind in DATASETS.items()
    ]
    given = [
        f"## {name}\n\n{table(('option', 'value'), _settings(chosen))}"
        for name, chosen in presets.PRESETS.items()
    ]
    parts = [
        "# Data sets, models, presets\n",
        table(("data set", "read from", "default model"), sets),
        f"Models are {', '.join(map(code, models.NAMES))}, or your own as `MODULE:FUNCTION`.\n",
        "A preset, `hpcfl train --preset NAME`, has the settings of a paper. Other options keep "
        "their defaults, and the options that you give override the preset. A setting without "
        "dashes is a keyword of `hpcfl.train`.\n",
        _presets_about(),
        *given,
    ]
    return "\n".join(parts)


def _settings(chosen: dict[str, Any]) -> list[tuple[str, str]]:
    typed = options_of(TrainOptions)
    return [
        (_of_train(name) if name in typed else code(name), code(str(value)))
        for name, value in chosen.items()
    ]


def _of_train(name: str) -> str:
    return f"[`--{dashed(name)}`](commands/train.md#train-{dashed(name)})"


def _presets_about() -> str:
    """Return what the module of the presets says of the papers, its list as it is there."""
    _, _, papers = cleandoc(presets.__doc__ or "").partition("leave open:")
    found = re.findall(r"^(\S+)\n((?:    .*\n?)+)", papers.strip(), re.MULTILINE)
    return table(("presets", "from"), [(code(name), words(text)) for name, text in found])


def plans() -> str:
    """Return the page of the sweeps that come with hpcfl."""
    parts = [
        "# Plans\n",
        "These plans come with hpcfl; run them with `hpcfl sweep NAME --output FOLDER`. Your own "
        "plan is a file like these: [Sweeps](../guide.md#sweep-over-parameters).\n",
    ]
    for name, title in shipped.titles().items():
        text = shipped.locate(name).read_text(encoding="utf-8")
        parts += [f"## {name}\n", words(title) + "\n", block(text, "toml")]
    return "\n".join(parts)


def prose(kind: type[Any]) -> str:
    """Return what a class says of itself, without the list of its attributes."""
    text = kind.__dict__.get("__doc__") or ""
    told, _, _ = cleandoc(text).partition("\n\nAttributes\n---")
    paragraphs = [words(" ".join(one.split())) for one in told.split("\n\n") if one]
    return "\n\n".join(paragraphs) + "\n"


def dashed(name: str) -> str:
    """Return the name of an option as it is typed, without the dashes in front."""
    return name.replace("_", "-")


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

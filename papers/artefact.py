"""A table or figure of a paper: its settings, and its comparison with the printed one.

An artefact is a list of settings. They are run one by one, and each result is stored at once, so
that an interrupted run continues with the next setting. The results are then compared with the
paper, line by line, and drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.panels import Panel
from papers.verdicts import Claim, Line, judge

Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The result for one setting."""

    setting: Setting
    found: Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """A size at which an artefact is run."""

    what: str  # in words, in comparison with the paper
    settings: Sequence[Setting]  # in order


@dataclass(frozen=True)
class Artefact:
    """A table or figure of a paper."""

    id: str  # ``paper/name``
    title: str
    # By name; the paper's own scale, which takes longest, is the first.
    scales: Mapping[str, Scale]
    # Every rank calls it with a setting and the folder of data sets; rank 0 returns figures that
    # can be stored as JSON.
    run: Callable[[Setting, Path | None], Mapping[str, Any]]
    # Takes the results in the order of the settings.
    compare: Callable[[Sequence[Result]], Sequence[Line | Claim]]
    draw: Callable[[Sequence[Result]], list[Panel]] | None = None

    @property
    def group(self) -> str:
        """The paper or study to which the artefact belongs."""
        return self.id.partition("/")[0]

    def lines(self, results: Sequence[Result]) -> list[Line]:
        """Return the statements of the paper beside the results, with verdicts."""
        return judge(self.compare(results))


def by_round(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the points of a curve over the rounds, which count from 1."""
    return range(1, len(values) + 1), values


def key(setting: Setting) -> str:
    """Return a text that is the same only for equal settings."""
    return json.dumps(setting, sort_keys=True)


class Store:
    """The results for the settings of one paper: a JSON file with a line for every setting.

    Settings shared by two artefacts are run once.
    """

    def __init__(self, folder: Path, paper: str) -> None:
        self.path = folder / f"{paper}.json"
        self._entries: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for entry in json.loads(self.path.read_text())["results"]:
                self._entries[key(entry["setting"])] = entry

    def missing(self, settings: Sequence[Setting]) -> list[int]:
        """Return the numbers of the settings without results."""
        return [number for number, one in enumerate(settings) if key(one) not in self._entries]

    def add(self, setting: Setting, found: Mapping[str, Any], **about: Any) -> None:
        """Store the result for a setting, and when and where it was run."""
        entry = {"setting": dict(setting), "found": dict(found), **about}
        self._entries[key(setting)] = entry
        lines = ",\n".join(json.dumps(one) for one in self._entries.values())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Replace the file atomically, so that an interruption loses no earlier results.
        half = self.path.with_suffix(".part")
        half.write_text(f'{{"results": [\n{lines}\n]}}\n')
        half.replace(self.path)

    def results(self, artefact: Artefact) -> tuple[Scale, list[Result]] | None:
        """Return the largest complete scale with its results; None if there is none."""
        for scale in artefact.scales.values():
            if not self.missing(scale.settings):
                entries = [self._entries[key(one)] for one in scale.settings]
                return scale, [Result(one["setting"], one["found"]) for one in entries]
        return None

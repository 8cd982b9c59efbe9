"""Keeps what was found, one JSON file a paper, one line a setting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfl.errors import HpcflError
from hpcfl.report.jsontext import finite
from hpcfl.reproduce.artefact import MORE, SCALES, Artefact, Line, Panel, Result, Setting, key
from hpcfl.system import outputs


class Store:
    """What was found for the settings of one paper, the part of an artefact's id before the stroke.

    Settings that two artefacts have in common are run once. A file that is there and cannot be read
    is refused.
    """

    def __init__(self, folder: Path, paper: str) -> None:
        self.path = folder / f"{paper}.json"
        self._entries: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            return
        try:
            for entry in json.loads(self.path.read_text("utf-8"))["results"]:
                if not (isinstance(entry["setting"], dict) and isinstance(entry["found"], dict)):
                    raise ValueError("a result is not a setting and what was found for it")
                self._entries[key(entry["setting"])] = entry
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HpcflError(
                f"{self.path} cannot be read ({error}): remove it, or choose another folder with "
                "--output"
            ) from None

    def missing(self, settings: Sequence[Setting]) -> list[int]:
        """Return the numbers of the settings for which nothing was found yet."""
        return [number for number, one in enumerate(settings) if key(one) not in self._entries]

    def add(self, setting: Setting, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Keep what was found for a setting, and when, where and how long it was run.

        The file is replaced at once. What is not a finite number becomes null.
        """
        self._entries[key(setting)] = {
            "setting": dict(setting),
            "found": finite(found),
            **about,
        }
        lines = ",\n".join(json.dumps(entry) for entry in self._entries.values())
        outputs.write(self.path, outputs.FINDINGS, f'{{"results": [\n{lines}\n]}}\n')

    def version(self, setting: Setting) -> str | None:
        """Return the commit of the version that has run a setting, as far as it is known."""
        found = self._entries[key(setting)].get("git_commit")
        return found if isinstance(found, str) else None

    def results(self, artefact: Artefact) -> tuple[str, list[Result]] | None:
        """Return the best scale that was run to its end, and what was found; None for none.

        After that comes what was found of the scale `MORE`, as far as it was run.
        """
        for name in SCALES:
            scale = artefact.scales.get(name)
            if scale is not None and not self.missing(scale.settings):
                keys = [key(setting) for setting in scale.settings]
                more = artefact.scales.get(MORE)
                further = [key(setting) for setting in more.settings] if more else []
                keys += [one for one in further if one in self._entries and one not in keys]
                entries = [self._entries[one] for one in keys]
                return name, [Result(entry["setting"], entry["found"]) for entry in entries]
        return None

    def compare(self, artefact: Artefact, results: Sequence[Result]) -> list[Line]:
        """Compare what `results` returned with the paper.

        An HpcflError says that figures in the file are missing or are something else.
        """
        with self._blamed(artefact):
            return artefact.lines(results)

    def panels(self, artefact: Artefact, results: Sequence[Result]) -> list[Panel]:
        """Return the panels of what `results` returned; raises as `compare` does."""
        assert artefact.draw is not None
        with self._blamed(artefact):
            return artefact.draw(results)

    @contextmanager
    def _blamed(self, artefact: Artefact) -> Iterator[None]:
        """Blame the file for what cannot be worked out from it."""
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise HpcflError(
                f"{self.path} does not hold what {artefact.id} is made of "
                f"({type(error).__name__}: {error}): run it with --again, or remove the file"
            ) from error

    def finished(self, artefact: Artefact) -> dict[str, int]:
        """Return how many settings of each scale were run."""
        return {
            name: len(scale.settings) - len(self.missing(scale.settings))
            for name, scale in artefact.scales.items()
        }

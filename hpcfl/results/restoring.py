"""Restores the options of a resumed run from its results file.

A file never decides which code is loaded: the user has to name again any protocol, algorithm or
model that does not come with hpcfl.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import OptionGroup, make, options_of
from hpcfl.report.formats import words
from hpcfl.results.schema import stored


def together(
    group: type[OptionGroup],
    path: Path,
    asked: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    free: Collection[str],
    code: Collection[str],
) -> dict[str, Any]:
    """Return the values of a resumed run's options, by name.

    `asked` holds the options that its file at `path` records, `config` the values that hpcfl used.
    Options `given` on resuming must agree with these, unless they are `free` or belong to one
    launch. Options in `code` must be given again if they are ``MODULE:NAME``. All else raises
    UsageError.
    """
    if asked is None:
        raise UsageError(f"{path} does not record its options, so it cannot be continued")
    try:
        before = make(group, asked)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path} is damaged: its options are not valid ({error})") from None
    known = options_of(group)
    changed: dict[str, Any] = {}
    for name, value in given.items():
        about = known.get(name)
        if about is None and not hasattr(before, name):
            raise no_such("option", name, known, listed=False)
        if value is None:
            continue
        now = value
        if about is not None:
            now = about.read(value)
            about.check(now)
            if name in free or "launch" in about.marks:
                changed[name] = str(now) if isinstance(now, Path) else now
                continue
        was = getattr(before, name)
        # The user may repeat the value that was given, or the one that hpcfl chose in its absence.
        decided = config.get(name) if was is None else was
        if now != was and not (was is None and stored({name: now})[name] == decided):
            raise UsageError(
                f"the run in {path} has {name} {words(decided, nothing='none')}, not {words(now)}: "
                "leave the option out, or give the same value"
            )
    for name in code:
        named = getattr(before, name)
        if ":" in (named or "") and given.get(name) is None:
            shown = f"--{known[name].dashed} {words(named)}" if name in known else words(named)
            raise UsageError(
                f"the run in {path} has the {name} {words(named)}, which does not come with hpcfl: "
                f"give {shown} beside --resume, because no file decides which code is loaded"
            )
    return {**asked, **changed}

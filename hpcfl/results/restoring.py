"""What a run was asked for, read from the file that it goes on from.

A file never decides which code is loaded: a protocol, an algorithm or a model of one's own has to
be named again.
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
    """Return by name what makes the options of a run that goes on.

    `asked` is what its file, at `path`, says that it was asked for, and `config` what that came to.
    What is `given` beside it must be the same, but for options that are `free`. Options named by
    `code` may be ``MODULE:NAME``, and then have to be given again. All else is a UsageError.
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
        # It may be given as it was, or as it was decided on.
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

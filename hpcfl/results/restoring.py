"""What a run was asked for, read from the file that it goes on from.

A file never decides which code is loaded: a protocol, an algorithm or a model of one's own has to
be named again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import Option, OptionGroup, make, options_of
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

    Parameters
    ----------
    group : type
        Of the options.
    path : Path
        The file, for messages.
    asked : mapping or None
        What it says that the run was asked for; see `~hpcfl.options.definition.asked_for`.
    config : mapping
        What it says that the options came to, where that is decided later than they are given.
    given : mapping
        What is given beside it, by name.
    free : collection of str
        Options that may be given with another value.
    code : collection of str
        Those of a name that may be ``MODULE:NAME``.

    Raises
    ------
    UsageError
        If something given is another value than the run's, code has to be named, or a file that the
        run read is gone.
    """
    if asked is None:
        raise UsageError(
            f"{path} does not record what was asked for, because an earlier version of hpcfl wrote "
            "it: give all options of the run again, beside --resume"
        )
    try:
        before = make(group, asked)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path} is damaged: of what was asked for, {error}") from None
    known = options_of(group)
    changed: dict[str, Any] = {}
    for name, value in given.items():
        about = known.get(name)
        if about is None and not hasattr(before, name):
            raise no_such("option", name, known, listed=False)
        if value is None:
            continue
        now = value if about is None else _checked(about, value)
        if about is not None and (name in free or "launch" in about.marks):
            changed[name] = now
            continue
        was = getattr(before, name)
        # It may be given as it was, or as it was decided on.
        decided = stored({name: now})[name] == config.get(name)
        if now != was and not (was is None and decided):
            was = config.get(name) if was is None else was
            raise UsageError(
                f"{path} is of a run with {name} {words(was, nothing='none')}, not {words(now)}: "
                "leave it out, or give the same"
            )
    for name in code:
        named = getattr(before, name)
        if ":" in (named or "") and given.get(name) is None:
            shown = f"--{known[name].dashed} {words(named)}" if name in known else words(named)
            raise UsageError(
                f"{path} is of a run with the {name} {words(named)}, which does not come with "
                f"hpcfl, and no file decides which code is loaded: give {shown} beside --resume"
            )
    for name, about in known.items():
        read = about.type is Path and not {"launch", "output"} & {*about.marks}
        place = changed.get(name, getattr(before, name)) if read else None
        if place is not None and not place.exists():
            raise UsageError(
                f"{path} is of a run with --{about.dashed} {place}, and nothing is there now: "
                + ("say where it is" if name in free else "put it back to go on")
            )
    return {**asked, **{name: _plain(value) for name, value in changed.items()}}


def chosen(asked: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the options whose values a run chose itself, for the rounds that it had planned.

    A run that goes on with more of them may have to choose others.
    """
    if asked is None or asked.get("levels") is not None:
        return frozenset()
    return frozenset(("levels", *(["group"] if asked.get("group") is None else [])))


def _checked(about: Option, value: Any) -> Any:
    read = about.read(value)
    about.check(read)
    return read


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value

"""The page that `hpcfl report --html` writes.

It loads nothing: style and figures are within, there is no script, and its content security policy
forbids both to whatever a results file may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcfl import __version__
from hpcfl.errors import UsageError
from hpcfl.html.elements import Markup, details, element, join, pairs, sentences, table
from hpcfl.html.figures import figures
from hpcfl.results import export
from hpcfl.results.pooling import Pool
from hpcfl.results.reader import Run
from hpcfl.results.summary import Summary
from hpcfl.results.tables import warnings_of
from hpcfl.system import files

# More runs than these are folded.
_UNFOLDED = 3
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --note: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 84rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; display: inline; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .4rem 0; }
details { border-top: 1px solid var(--line); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .2rem .35rem; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { vertical-align: bottom; border-bottom-width: 2px; }
.number { text-align: right; } .word, .pairs th { text-align: left; }
.wide td.word { overflow-wrap: anywhere; }
.pairs { margin: 1rem 0; } .pairs th { font-weight: 400; white-space: nowrap; }
.pairs td { overflow-wrap: anywhere; }
pre { background: var(--note); padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; break-inside: avoid; }
figure svg { background: white; max-width: 100%; height: auto; display: block; }
figcaption { font-size: .9rem; max-width: 60rem; padding-top: .3rem; }
@media print {
  body { max-width: none; font-size: 10pt; } .wide { overflow: visible; }
  table { font-size: 6.5pt; } th, td { padding: .1rem .2rem; } tr { break-inside: avoid; }

  details::details-content { content-visibility: visible; block-size: auto; }
}
"""


def write(
    path: Path, pools: Sequence[Pool], summaries: Sequence[Summary], baseline: Summary
) -> None:
    """Write a page of runs.

    Parameters
    ----------
    path : Path
        The file, overwritten; its folder is created when absent.
    pools : sequence of Pool
        The runs, repeats together.
    summaries : sequence of Summary
        One for each pool, in the same order, all with the same link model.
    baseline : Summary
        The one that the others are compared with.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    content = render(pools, summaries, baseline)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error}): choose another place"
        ) from None


def render(pools: Sequence[Pool], summaries: Sequence[Summary], baseline: Summary) -> str:
    """Return the page; see :func:`write`."""
    runs = sum(len(pool.runs) for pool in pools)
    title = f"hpcfl: {runs} run{'s' if runs != 1 else ''}"
    drawn = figures([pool.run for pool in pools])
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Markup(_STYLE)),
    ]
    body = [
        element("h1", title),
        element("p", f"Written by hpcfl {__version__}."),
        element("section", join([element("h2", "Summary"), *_summary(summaries, baseline)])),
    ]
    if drawn:
        body.append(element("section", join([element("h2", "Figures"), drawn])))
    is_open = len(pools) <= _UNFOLDED
    shown = [
        details(
            f"{number}. {summary.protocol}, N = {summary.devices}, d = {summary.dim}",
            _details(pool, summary),
            is_open,
        )
        for number, (pool, summary) in enumerate(zip(pools, summaries, strict=True), 1)
    ]
    body.append(element("section", join([element("h2", "Runs"), *shown])))
    page = element(
        "html", join([element("head", join(head)), element("body", _main(body))]), lang="en"
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _main(body: Sequence[Markup]) -> Markup:
    return element("main", join(body))


def _summary(summaries: Sequence[Summary], baseline: Summary) -> list[Markup]:
    link = baseline.link
    notes = [
        "Times are medians over measured rounds; warm-up rounds and rounds that failed validation "
        "are left out. Bytes are means. CPU of a device is that of the slowest device of each "
        "round.",
        f"Modelled seconds are for {link.uplink_mbps:g} Mbit/s up, {link.downlink_mbps:g} Mbit/s "
        f"down and {link.latency_ms:g} ms latency; measured and modelled seconds are different "
        "things.",
    ]
    if len(summaries) > 1:
        notes.append(
            f"A ratio is that of {baseline.protocol}, N = {baseline.devices}, "
            f"d = {baseline.dim} ({baseline.name}) over this run: above 1 this run is cheaper."
        )
    shown = table(export.comparison(summaries, baseline), "What a round costs")
    return [shown, *(element("p", note) for note in notes)]


def _details(pool: Pool, summary: Summary) -> Markup:
    first = pool.runs[0]
    parts = [
        pairs(_about(summary), "Measurement"),
        sentences([f"Warning: {sentence}" for sentence in warnings_of(summary)]),
        sentences(_promises(first)),
        table(export.phases(summary), "Phases of a round"),
    ]
    for number, run in enumerate(pool.runs, 1):
        which = f" (launch {number})" if len(pool.runs) > 1 else ""
        about = {"file": run.path, "run": run.run_id, "started": run.started}
        parts += [
            pairs(about | {"finished": run.finished or "not finished"}, f"Run{which}"),
            element("p", f"Command to measure it again{which}:"),
            element("pre", element("code", run.command)),
        ]
    options = {name: value for name, value in first.config.items() if name != "promises"}
    parts += [
        pairs(_known(options), "Options"),
        pairs(_known(first.environment), "Environment"),
    ]
    return join(part for part in parts if part)


def _about(summary: Summary) -> dict[str, object]:
    seconds, interval = summary.round_seconds, summary.round_seconds_interval
    about: dict[str, object] = {
        "status": summary.status,
        "launches": summary.repeats,
        "rounds": f"{summary.rounds_measured} measured, {summary.rounds_warmup} of warm-up",
        "validated": f"{summary.rounds_validated} of {summary.rounds_total}",
    }
    if summary.rounds_measured:
        spread = f"median {seconds.median:.4g} s, p95 {seconds.p95:.4g} s, max {seconds.max:.4g} s"
        about["round, measured"] = spread
        if interval.known:
            about["its median's 95 % interval"] = f"{interval.low:.4g} to {interval.high:.4g} s"
        modelled = summary.modelled_round_seconds
        about["round, modelled"] = (
            f"median {modelled.median:.4g} s, p95 {modelled.p95:.4g} s, max {modelled.max:.4g} s"
        )
    return about


def _promises(run: Run) -> list[str]:
    """Return what the run's protocol hides, as it was recorded."""
    return files.parse_words(run.config.get("promises", "[]"))


def _known(values: dict[str, object]) -> dict[str, object]:
    """Return what has a value, by name."""
    return {name: value for name, value in sorted(values.items()) if value not in ("none", "")}

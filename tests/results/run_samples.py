"""Runs with given round seconds."""

from run_files import CONFIG, ENVIRONMENT, PHASES, simple_record

from hpcfl.results.writer import ResultsWriter


def write_seconds(
    path,
    seconds,
    *,
    protocol="secagg",
    environment=None,
    scale=1,
    warmup=None,
    status="complete",
    **config,
):
    """Write a run whose rounds, after one of warm-up where that is given, took so long."""
    path.parent.mkdir(exist_ok=True, parents=True)
    seconds = list(seconds)
    records = [] if warmup is None else [simple_record(warmup=True)]
    records += [simple_record(scale) for _ in seconds]
    for record, value in zip(
        records, [*([] if warmup is None else [warmup]), *seconds], strict=True
    ):
        record.round_seconds = float(value)
        record.cpu_seconds *= float(value)
    writer = ResultsWriter(
        path,
        protocol=protocol,
        command="hpcfl bench",
        config=CONFIG | config,
        environment={**ENVIRONMENT, **(environment or {})},
        phases=PHASES,
        devices=4,
        rounds=max(1, len(records)),
    )
    for record in records:
        writer.append(record)
    writer.close(status)
    return path

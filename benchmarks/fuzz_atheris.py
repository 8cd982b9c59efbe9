"""Coverage-guided fuzzing of the parties' messages; needs atheris (``pip install atheris``).

The first bytes of an input choose who receives it; the rest is the message, without its envelope.
Ends by itself only if libFuzzer is told to, or on a finding.

    python benchmarks/fuzz_atheris.py -max_total_time=3600 -max_len=1200 -rss_limit_mb=2048
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

with atheris.instrument_imports(include=["hpcfl"]):
    import fuzzed_wire as wire  # type: ignore[import-not-found]
    import numpy as np

    from hpcfl.algorithms import locations
    from hpcfl.comm import envelope
    from hpcfl.errors import HpcflError

    DEVICES = 5
    # One of each kind of message: what differs between two senders is not how they are read. Made
    # here, because protocols are imported when they are asked for.
    STANDS = list(
        {
            (case, stand.method, stand.is_server): stand
            for case in wire.CASES
            for stand in wire.stands_of(case, DEVICES)
        }.values()
    )


def one_input(raw: bytes) -> None:
    choice, message = raw[:2], np.frombuffer(raw[2:], np.uint8)
    number = int.from_bytes(choice, "little") % (len(STANDS) + 2)
    if number == len(STANDS):
        read_locations(message)
        return
    if number > len(STANDS):
        envelope.refusal_in(message, 3, 1)
        return
    stand = STANDS[number]
    party = stand.party_again()
    before = stand.state(party) if stand.is_server else b""
    try:
        getattr(party, stand.method)(*arguments(stand, message))
    except HpcflError:
        # Of too few devices that shared keys the server has taken note.
        if stand.is_server and stand.method != "receive_share_keys":
            assert before == stand.state(party), stand.method


def arguments(stand: wire.Stand, message: wire.Bytes) -> tuple[object, ...]:
    """Return what a party receives if this is its message."""
    if stand.method == "receive_share_keys":
        if stand.is_server:
            return (message.astype(np.int64),)
        # Ids, one byte each, then a row for each.
        count = min(len(message), 1 + int(message[0]) % 8 if len(message) else 0)
        size = (len(message) - count) // count if count else 0
        rows = message[count : count + count * size].reshape(count, size)
        return message[:count].astype(np.int64) - 1, rows
    if stand.is_server:
        return stand.arguments[0], message
    return (message,)


def read_locations(message: wire.Bytes) -> None:
    """Read locations; what is taken for some must be increasing and within the vector."""
    dim = 1 + int(message[0]) * 9 if len(message) else 1
    try:
        positions, used = locations.decode(message[1:], dim)
    except ValueError:
        return
    assert used <= len(message) - 1
    assert not len(positions) or (positions[0] >= 0 and positions[-1] < dim)
    assert (np.diff(positions) > 0).all()


def seeds(folder: Path) -> None:
    """Write the honest messages, from which the fuzzer starts."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stand in enumerate(STANDS):
        message = stand.arguments[-1]
        if message.dtype == np.uint8:
            content = number.to_bytes(2, "little") + message.tobytes()
            (folder / f"{number:03}").write_bytes(content)


if __name__ == "__main__":
    corpus = [Path(one) for one in sys.argv[1:] if not one.startswith("-")]
    if corpus:
        seeds(corpus[0])
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()

"""How many bytes move, who moves them, and that the ledger says the same."""

from __future__ import annotations

from protocol_rounds import (
    Header,
    make,
    play,
    sent_by_device,
)

DEVICES = 9
# Device 0 is on no list, device 4 is but takes no part: seven devices send it what is lost.
DROPOUTS = {0: "advertise_keys", 4: "share_keys", 7: "masked_input", 2: "unmask"}

# The sizes that the documentation of the protocols states, envelope included.
ENVELOPE = 16
SHARE = ENVELOPE + 4 * (10 + 6) + 16


# sizes


# envelopes


# ledger


def test_of_a_row_that_was_not_sent_the_relay_passes_on_an_envelope():
    """So that its receiver knows that its sender takes part, and masks with it."""

    def leave_out(rows):
        return rows[Header.receivers_of(rows) != 5]

    protocol = make("secagg", DEVICES, 50)
    played = play(protocol, change=sent_by_device(protocol, "share_keys", 3, leave_out))
    before = play(protocol).record
    row = protocol.phases().index("share_keys")
    missing = [SHARE - ENVELOPE if id == 5 else 0 for id in range(DEVICES)]
    down = before.bytes_down[row].astype(int) - played.record.bytes_down[row].astype(int)
    assert missing == down.tolist()
    assert before.messages_down[row].tolist() == played.record.messages_down[row].tolist()
    played.goes_on()


def test_with_reduce_the_ledger_holds_the_same_uploads_without_envelopes():
    gathered, reduced = (
        play(make("secagg", DEVICES, 50), dropouts=DROPOUTS, upload=upload)
        for upload in ("gather", "reduce")
    )
    row = gathered.protocol.phases().index("masked_input")
    uploads = [len(reduced.wire.summed.get(id, b"")) for id in range(DEVICES)]

    assert [0, 200, 200, 200, 0, 200, 200, 0, 200] == uploads
    assert uploads == reduced.record.bytes_up[row].tolist()
    assert [size // 200 for size in uploads] == reduced.record.messages_up[row].tolist()
    assert gathered.sent("masked_input") == reduced.wire.summed
    assert gathered.server.total.tolist() == reduced.server.total.tolist()

"""SparseSecAgg and SecAgg against the equations of the papers, worked out slowly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from protocol_rounds import make, play
from slow_reference import SlowRound

DEVICES, DIM = 7, 60
# Every phase loses a device in some case; t = 4.
DROPOUTS = {
    "nobody": {},
    "before masked_input": {1: "masked_input", 4: "masked_input", 6: "masked_input"},
    "in every phase": {0: "share_keys", 2: "masked_input", 5: "unmask"},
    "before any key": {6: "advertise_keys", 3: "masked_input", 0: "masked_input"},
}
CASES = [
    pytest.param(sampler, group, dropouts, id=f"{sampler}-{group}-{name}")
    for sampler, group in [("gaps", "fq"), ("dense", "ring32"), ("dense", "fq"), ("gaps", "ring32")]
    for name, dropouts in DROPOUTS.items()
]


def play_sparse(sampler, group, dropouts):
    weights = np.arange(1.0, DEVICES + 1)
    protocol = make(
        "sparse",
        DEVICES,
        DIM,
        alpha=0.7,
        sampler=sampler,
        group=group,
        locations="bitmap",
        weights=weights / weights.sum(),
        # Devices divide by the planned 1 - theta, or the server by the weight of the survivors.
        scaling="paper" if group == "fq" else "survivors",
    )
    return play(protocol, dropouts=dropouts, index=3)


def quantised(played, i, where):
    """Return device i's quantised values at some coordinates, after checking them by eq. 16."""
    parameters = played.parameters
    pi = Fraction(parameters.alpha) / (DEVICES - 1)
    p = 1 - (1 - pi) ** (DEVICES - 1)
    planned = 1 - Fraction("0.3") if parameters.scaling == "paper" else 1
    scale = Fraction(i + 1) / (DEVICES * (DEVICES + 1) // 2) / (p * planned)
    integers = played.protocol.quantise(played.vectors[i][where], i, played.index).tolist()
    for k, integer in zip(where, integers, strict=True):
        exact = parameters.levels * scale * Fraction(min(max(played.vectors[i][k], -1.0), 1.0))
        # Rounded up or down; the product was formed in 53 bits.
        assert math.floor(exact - Fraction(1, 10**9)) <= integer
        assert integer <= math.floor(exact + Fraction(1, 10**9)) + 1
    return dict(zip(where, integers, strict=True))


def on_the_wire(played, i):
    """Return x_i as device i sent it with a bitmap, read byte by byte."""
    payload = played.sent("masked_input")[i]
    assert (0, 0, 0) == (payload[0], payload[1], int.from_bytes(payload[2:4], "little"))
    cut = 8 + -(-DIM // 8)
    digits = "".join(f"{byte:08b}" for byte in payload[8:cut])
    where = [k for k, digit in enumerate(digits) if digit == "1"]
    assert len(where) == int.from_bytes(payload[4:8], "little")
    assert cut + 4 * len(where) == len(payload)
    values = [int.from_bytes(payload[k : k + 4], "little") for k in range(cut, len(payload), 4)]
    return dict(zip(where, values, strict=True))


@pytest.mark.parametrize(("sampler", "group", "dropouts"), CASES)
def test_every_value_on_the_wire_is_that_of_equation_18(sampler, group, dropouts):
    played = play_sparse(sampler, group, dropouts)
    slow = SlowRound(played)

    assert slow.survivors == list(played.sent("masked_input"))
    for i in slow.survivors:
        # M_i(l) = 1 - prod (1 - b_ij(l)): exactly these coordinates are sent.
        selected = [
            k for k in range(DIM) if 1 - math.prod(1 - (k in slow.b(i, j)) for j in slow.peers(i))
        ]
        assert selected == list(on_the_wire(played, i))
        assert slow.upload(i, quantised(played, i, selected)) == on_the_wire(played, i)


@pytest.mark.parametrize(("sampler", "group", "dropouts"), CASES)
def test_the_server_removes_masks_by_the_corrected_equation_21_and_no_printed_form_would_do(
    sampler, group, dropouts
):
    played = play_sparse(sampler, group, dropouts)
    slow = SlowRound(played)
    received = [0] * DIM
    plain = [0] * DIM
    for i in slow.survivors:
        for k, value in on_the_wire(played, i).items():
            received[k] += value
        for k, value in quantised(played, i, slow.u(i)).items():
            plain[k] += value

    total = [slow.signed(element) for element in slow.unmask(received)]
    assert plain == total
    assert total == played.server.total.tolist()
    decoded = played.protocol.decode(played.server.total)
    assert [value / played.parameters.levels for value in total] == decoded.tolist()
    if not slow.dropped:
        return
    for right_signs, right_indicator in [(False, False), (False, True), (True, False)]:
        wrong = slow.unmask(received, right_signs=right_signs, right_indicator=right_indicator)
        mistaken = [k for k in range(DIM) if slow.signed(wrong[k]) != plain[k]]
        assert len(mistaken) > DIM // 10


@pytest.mark.parametrize("group", ["fq", "ring32"])
def test_a_secagg_upload_is_the_vector_plus_its_private_mask_plus_every_pairs_mask(group):
    played = play(make("secagg", 6, 30, group=group), dropouts={4: "share_keys", 2: "masked_input"})
    slow = SlowRound(played)
    for i in slow.survivors:
        integers = played.protocol.quantise(played.vectors[i], i, 0).tolist()
        x = slow.upload(i, dict(enumerate(integers)))
        content = b"".join(x[k].to_bytes(4, "little") for k in range(30))
        assert content == played.sent("masked_input")[i]

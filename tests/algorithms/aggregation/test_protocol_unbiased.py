"""The decoded sum is right on average, although coordinates and devices are left out at random.

A device's coordinate reaches the sum with probability p (1 - theta). In the paper vectors are
scaled by beta_i / (p (1 - theta)) before (SparseSecAgg, eqs. 14 to 16). Else they are scaled by
beta_i / p, and the server, who knows whose vectors are in the sum, divides by their weight: then
the mean is that of the survivors, and not only right on average over who drops out.
"""

from __future__ import annotations

import numpy as np
from protocol_rounds import make, play, sent_by

DEVICES, BLOCK, ROUNDS, THETA = 12, 40, 120, 0.2
# With fresh seeds the test would fail once in a million runs although all is right.
FALSE_ALARM = 1e-6


def test_a_coordinate_that_nobody_sent_is_zero_and_no_division():
    """Cohorts of 2 of 10; the two of one segment have vanished."""
    protocol = make("cohort", 10, 40, alpha=0.2, levels=10_000)
    order = play(protocol, before="share_keys").order()
    gone = dict.fromkeys(order[3:5], "masked_input")
    played = play(protocol, np.full((10, 40), 0.5), gone)
    mean = protocol.aggregate(played.server).mean
    sent = {at for id in played.server.survivors for at in sent_by(played, id).tolist()}
    nobody = [at for at in range(40) if at not in sent]
    assert 4 == len(nobody)
    assert [0.0] * 4 == mean[nobody].tolist()
    np.testing.assert_allclose(mean[sorted(sent)], 0.5, atol=1e-3, rtol=0)

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.results.linkmodel import LinkModel

_SPENT = ("bytes_up", "bytes_down", "messages_up", "messages_down", "cpu_seconds")
NO_HELPERS = {f"helper_{name}": np.zeros(0) for name in _SPENT}


def seconds(link, up, down, cpu):
    up_bytes, down_bytes = np.array(up, np.uint64), np.array(down, np.uint64)
    return modelled(link, up_bytes, down_bytes, up_bytes > 0, down_bytes > 0, np.array(cpu))


def modelled(link, *values):
    spent = dict(zip(_SPENT, values, strict=True))
    return link.seconds_of(SimpleNamespace(**spent, **NO_HELPERS))


def test_a_phase_lasts_as_long_as_its_slowest_device_and_then_the_server():
    link = LinkModel(uplink_mbps=8, downlink_mbps=80, latency_ms=100)
    # 1 MB takes 1 s up and 0.1 s down. Device 0: 1 + 0.1 + 2 * 0.1 + 0.5 = 1.8 s; device 1:
    # 1.5 + 0.1 = 1.6 s of sending, no latency for a direction without a message; server 0.25 s.
    # In the second phase one computes for 1 s, the other sends for 0.5 s: not 1.6 s together.
    found = seconds(
        link,
        [[1e6, 1.5e6], [0, 0.5e6]],
        [[1e6, 0], [0, 0]],
        [[0.5, 0.0, 0.25], [1.0, 0.0, 0.0]],
    )

    np.testing.assert_allclose(found, [2.05, 1.0], rtol=1e-14)


def test_a_phase_without_messages_has_no_latency_and_an_empty_message_has():
    link = LinkModel(latency_ms=50)
    none, one = np.zeros((1, 1), np.uint64), np.ones((1, 1), np.uint64)

    assert seconds(link, [[0, 0]], [[0, 0]], [[0.0, 0.0, 0.125]]).tolist() == [0.125]
    assert modelled(link, none, none, one, one, np.zeros((1, 2))) == pytest.approx([0.1])

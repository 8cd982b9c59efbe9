"""The ranks of a server: what each receives, adds up and unmasks makes up the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.ranges import UNIT_BYTES, Dealt, RangeSum, mask_rows
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm import envelope
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import MessageError, UsageError

widths = st.sampled_from(sorted({group.bits for group in GROUPS.values()}))


@given(bits=widths, count=st.integers(1, 3_000_000), ranks=st.integers(1, 40))
def test_ranges_are_dealt_out_end_to_end_and_begin_where_masks_and_bytes_do(bits, count, ranks):
    try:
        dealt = Dealt.out(bits, count, ranks)
    except UsageError:
        assert count <= (ranks - 1) * 8 * UNIT_BYTES // bits
        return
    assert count > (ranks - 1) * 8 * UNIT_BYTES // bits
    starts = [each.start for each in dealt.ranges]
    assert [each.stop for each in dealt.ranges] == [*starts[1:], count]
    assert starts[0] == 0
    assert len(dealt.ranges) == ranks
    assert all(len(each) and each.start % 64 == 0 for each in dealt.ranges)
    assert all(each.start * bits % (8 * envelope.PART_UNIT) == 0 for each in dealt.ranges)

    largest = envelope.BYTES + -(-count * bits // 8)
    cuts = dealt.cuts(envelope.BYTES, largest)
    assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
    assert cuts[-1].stop == largest
    for cut, each in zip(cuts[1:], dealt.ranges[1:], strict=True):
        assert 8 * (cut.start - envelope.BYTES) == each.start * bits


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("group", ["fq", "ring12", "ring32"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_ranks_unmask_is_what_one_rank_does(group, ranks, threads):
    arithmetic, dim = GROUPS[group], 40_001
    parameters = Parameters(3, dim, group=group, levels=1, threads=threads)
    protocol = find("secagg")(parameters)
    generator = np.random.default_rng(7)
    uploads = [
        arithmetic.pack(arithmetic.reduce(generator.integers(0, 2**40, dim))) for _ in range(3)
    ]
    masks = mask_rows([bytes([k] * 16) for k in range(4)], [1, -1, -1, 1])

    def unmasked(values):
        total = RangeSum.of(protocol, values)
        start, stop = values.start * arithmetic.bits // 8, -(-values.stop * arithmetic.bits // 8)
        for sender, upload in enumerate(uploads):
            middle = start + 840 * 3
            size = upload.size
            assert not total.add_part(sender, upload[start:middle], start, size)
            assert total.add_part(sender, upload[middle:stop], middle, size)
        return total.unmask(masks.reshape(-1))

    found = [unmasked(each) for each in Dealt.uploads_of(protocol, ranks).ranges]

    np.testing.assert_array_equal(np.concatenate(found), unmasked(range(dim)))


def test_an_upload_of_a_wrong_size_is_no_part_of_a_range():
    protocol = find("secagg")(Parameters(3, 20_000))
    total = RangeSum.of(protocol, Dealt.uploads_of(protocol, 2).ranges[1])

    with pytest.raises(MessageError, match="received 79999 bytes, expected 80000"):
        total.add_part(1, np.zeros(840, np.uint8), 80_000 - 840, 79_999)


@pytest.mark.parametrize("name", ["sparse", "cohort", "fedavg", "prf"])
def test_what_cannot_be_dealt_out_is_refused(name):
    protocol = find(name)(Parameters(5, 100_000, dropout=0.0, alpha=0.5))

    with pytest.raises(UsageError, match=f"{name} cannot use --server-ranks"):
        Dealt.uploads_of(protocol, 2)

"""How many bits a value has, the fewest with room for all sums; how many levels bits hold."""

from itertools import product

import pytest

import hpcfl
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.build import build

WIDTHS = [8, 12, 16, 20, 24, 28, 32]


def built(protocol="secagg", devices=10, **options):
    return build(protocol, BenchOptions(protocol, **options), devices, 100)[0]


RINGS = ["secagg", "cohort", "sparse", "common", "prf"]
FIELDS = ["lightsecagg", "committee"]


def group_of(protocol, bits):
    if protocol in RINGS:
        return f"ring{bits}"
    return f"field{bits}" if int(bits) < 32 else "fq"


def test_auto_is_the_fewest_bits_that_are_not_refused():
    for protocol, levels in product((*RINGS, *FIELDS), (1, 10, 1000, 10**6, 10**8)):
        options = {"alpha": 0.5, "dropout": 0.0, "levels": levels}
        chosen = built(protocol, bits="auto", **options).parameters

        assert (chosen.group, chosen.levels) == (group_of(protocol, chosen.arithmetic.bits), levels)
        for bits in WIDTHS:
            if bits >= chosen.arithmetic.bits:
                built(protocol, bits=str(bits), **options)
                continue
            with pytest.raises(UsageError, match=f"the group {group_of(protocol, bits)}"):
                built(protocol, bits=str(bits), **options)


def test_bits_that_are_given_beside_another_group_are_refused():
    with pytest.raises(UsageError, match="fieldB of B bits, not in ring16"):
        built("committee", bits="16", group="ring16")
    with pytest.raises(UsageError, match="ringB of B bits, not in field16"):
        built("secagg", bits="16", group="field16")


def test_what_no_bits_have_room_for_is_refused():
    with pytest.raises(UsageError, match=r"levels 1000000000 .* group ring32: the largest"):
        built(bits="auto", levels=10**9, clip=10)


@pytest.mark.parametrize("bits", WIDTHS)
def test_levels_are_by_default_as_many_as_the_bits_have_room_for(bits):
    levels = built(bits=str(bits), clip=0.5).parameters.levels

    assert levels == min(2**20, 2 * (2 ** (bits - 1) - 1 - 10))


def test_of_a_cohort_only_its_devices_need_room():
    """A tenth of a hundred devices is in a coordinate's sum, so that their roundings are fewer."""
    cohort = built("cohort", 100, alpha=0.1, bits="8", clip=1.0)
    assert cohort.parameters.levels == 127 - 10
    secagg = built("secagg", 100, bits="8", clip=1.0)
    assert secagg.parameters.levels == 127 - 100


@pytest.mark.parametrize("bits", ["12", "20", "24", "28"])
def test_mpi_sums_no_packed_values(bits):
    with pytest.raises(UsageError, match=r"cannot use --upload reduce: .* of 8, 16 or 32 bits"):
        built(bits=bits, upload="reduce")


def test_noise_takes_what_bits_there_are(tmp_path):
    options = {"devices": 10, "dim": 50, "rounds": 1, "warmup": 0, "noise_multiplier": 1.0}
    few, many = (
        hpcfl.bench("dp-fedavg", **options, bits=bits, output=tmp_path) for bits in (16, 20)
    )
    assert few.validated.all()
    assert 0 < few.config["levels"] < many.config["levels"]
    too_many = few.config["levels"] + 1
    with pytest.raises(UsageError, match=f"levels {too_many} .* noise could overflow .* ring16"):
        hpcfl.bench("dp-fedavg", **options, bits=16, levels=too_many)


@pytest.mark.parametrize(
    ("bits", "levels", "noise", "refusal"),
    [
        ("32", 2 * 10**9, 1.0, r"levels 2000000000 .* and noise .* ring32: \d+ have room$"),
        ("20", 10**5, 10.0, "levels 100000 .* and noise .* ring20: give fewer$"),
        ("8", 1, 100.0, "this noise is too large .* ring8 at any number of levels: take more bits"),
    ],
)
def test_levels_without_room_beside_the_noise_are_refused(bits, levels, noise, refusal):
    options = {"devices": 10, "dim": 50, "bits": bits, "levels": levels}
    with pytest.raises(UsageError, match=refusal):
        hpcfl.bench("dp-fedavg", noise_multiplier=noise, **options)

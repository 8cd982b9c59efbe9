"""LightSecAgg beside SecAgg: N = 100, d = 165,000, 28 and 30 dropouts, 33 devices that may collude.

python benchmarks/coded_masks.py              a minute of one core
python benchmarks/coded_masks.py --rounds 9   more rounds

Prints the bytes dealt before the upload, the CPU time to encode a mask, and the server's time to
recover the sum of the masks, beside its time to unmask in `secagg`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

import numpy as np

from harness import cpu_seconds, figure, run
from hpcfl.algorithms.aggregation import sealed
from hpcfl.algorithms.aggregation.lightsecagg import LightSecAgg
from hpcfl.comm.phases import ENVELOPE_BYTES
from hpcfl.crypto.groups import FIELDS, FQ

DEVICES, DIM, GAMMA = 100, 165_000, 0.33
# Besides the planned dropouts, one more device may drop out and one may answer falsely: U = 70,
# T = 33.
DROPOUT = 0.28


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    plan = {"dim": DIM, "rounds": rounds, "warmup": 1}
    light, coded = run("lightsecagg", DEVICES, gamma=GAMMA, dropout=DROPOUT, **plan)
    heavy, masked = run("secagg", DEVICES, dropout=0.3, **plan)
    assert isinstance(light.protocol, LightSecAgg)
    code = light.protocol.code
    print(f"U = {code.needed}, T = {code.private}, pieces of {code.width} elements")

    sent = coded[0].bytes_up[light.protocol.phases().index("share_masks")].max()
    pieces = sent - (DEVICES - 1) * ENVELOPE_BYTES - ENVELOPE_BYTES - -(-DEVICES // 8)
    formula = 4 * (DEVICES - 1) * code.width
    print(f"dealt by a device: {sent} bytes in all, {pieces} of sealed pieces, formula {formula}")
    tags = (DEVICES - 1) * sealed.TAG_BYTES
    figure("sealed pieces over the formula, less 1", pieces / formula - 1, 0.01)
    figure("all bytes of the phase over the formula, less 1", sent / formula - 1, 0.01)
    assert pieces == formula + tags

    mask = FQ.elements([bytes(16)], [DIM])
    random = FQ.elements([bytes(16)], [code.private * code.width])
    encoding = [
        cpu_seconds(lambda: code.encode(mask, random, range(DEVICES))) for _ in range(rounds)
    ]
    figure("encoding a mask, CPU seconds of a device", median(encoding), 0.35, " s")
    few = replace(code, field=FIELDS[16])
    mask, random = (few.field.elements([bytes(16)], [each.size]) for each in (mask, random))
    short = [cpu_seconds(lambda: few.encode(mask, random, range(DEVICES))) for _ in range(rounds)]
    figure("encoding one of 16 bits, over that", median(short) / median(encoding), 0.5)

    unmask = [
        float(
            np.median([one.cpu_seconds[of.protocol.phases().index("unmask"), -1] for one in each])
        )
        for of, each in ((light, coded), (heavy, masked))
    ]
    print(f"server in unmask: {unmask[0]:.4f} s, secagg {unmask[1]:.4f} s")
    figure("recovery over secagg's unmasking", unmask[0] / unmask[1], 0.25)
    for of, each in ((light, coded), (heavy, masked)):
        device = np.median([one.cpu_seconds[:, :-1].max(axis=1) for one in each], axis=0)
        print(f"{of.protocol.name}: CPU ms of the slowest device by phase")
        for name, seconds in zip(of.protocol.phases(), device, strict=True):
            print(f"    {name:<16} {1e3 * seconds:8.2f}")


if __name__ == "__main__":
    main()

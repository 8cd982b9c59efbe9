"""Time of one device's dense mask: against the bare AES-CTR keystream, and by bits of a value.

The keystream of masks is AES-GCM's where that is faster, with the same bytes; the bare one is not.

N = 100 masks (99 pairwise, one private) of d = 1,663,370 elements; and all that a device of N = 8
does with a vector. Compared works alternate, and the figures are medians of the ratios of their CPU
seconds. Takes about 30 s on one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from harness import cpu_seconds, figure
from hpcfl.crypto import keystream, native
from hpcfl.crypto.groups import GROUPS, Group

DIM = 1_663_370
MASKS, FEW = 100, 8
REPEATS = 9


def bare(keys: list[bytes]) -> None:
    """Generate the keystreams of all masks in the same blocks, and discard them."""
    counter = modes.CTR(bytes(15) + b"\2")
    streams = [Cipher(algorithms.AES128(key), counter).encryptor() for key in keys]
    block = np.empty(keystream.BLOCK_BYTES, np.uint8)
    for start in range(0, 4 * DIM, keystream.BLOCK_BYTES):
        part = block[: min(keystream.BLOCK_BYTES, 4 * DIM - start)]
        for stream in streams:
            keystream.fill(stream, part)


def elements_of_few_bits(group: Group, key: bytes) -> None:
    """Draw B bits per element and unpack them, an alternative that the groups do not use."""
    group.unpack(keystream.read([key], [group.wire_bytes(DIM)]), DIM)


def there_and_back(group: Group, elements: np.ndarray) -> None:
    group.unpack(group.pack(elements), DIM)


def main() -> None:
    keys = [os.urandom(keystream.KEY_BYTES) for _ in range(MASKS)]
    signs = [(-1) ** k for k in range(MASKS)]
    vectors = {name: group.reduce(np.arange(DIM)) for name, group in GROUPS.items()}

    def by_numpy() -> None:
        with patch.object(native, "masker", lambda: None):
            GROUPS["fq"].add_masks(vectors["fq"], keys, signs)

    short, values = GROUPS["ring16"], np.linspace(-0.9, 0.9, DIM, dtype=np.float32)
    rounder = native.rounder()

    def of_few() -> None:
        elements = np.empty(DIM, short.dtype)
        assert rounder is not None
        rounder.quantise(values, 1.0, 4000.0, np.random.SFC64(1), short, elements)
        short.mask(elements, keys[:FEW], signs[:FEW])

    works: dict[str, Callable[[], object]] = {"bare": partial(bare, keys), "NumPy": by_numpy}
    if rounder:
        # Two words of 16 bits take as many bytes as one of 32.
        works |= {"few": of_few, "bare few": partial(bare, keys[: FEW // 2])}
    for name, group in GROUPS.items():
        works[name] = partial(group.add_masks, vectors[name], keys, signs)
        if not group.whole_words:
            works[f"{name} packed"] = partial(there_and_back, group, vectors[name])
            works[f"{name} words"] = partial(group.elements, [keys[0]], [DIM])
            works[f"{name} bits"] = partial(elements_of_few_bits, group, keys[0])
    times = [{name: cpu_seconds(work) for name, work in works.items()} for _ in range(REPEATS)]

    def ratio(one: str, other: str) -> float:
        return float(np.median([each[one] / each[other] for each in times]))

    figure(
        "mask of N = 100, d = 1,663,370 in fq, NumPy / bare keystream", ratio("NumPy", "bare"), 1.58
    )
    if native.masker():
        figure("the same with the compiled kernel", ratio("fq", "bare"), 1.15)
    figure("the same in ring32", ratio("ring32", "bare"), 1.5)
    figure("mask at 16 bits / at 32 bits", ratio("ring16", "ring32"), 0.6)
    if rounder:
        name = "vector of 16 bits, N = 8, quantised and masked / bare keystream"
        figure(name, ratio("few", "bare few"), 2)
    for name, group in GROUPS.items():
        if not group.whole_words:
            packed = ratio(f"{name} packed", name)
            figure(f"packed and unpacked / masked, {group.bits} bits", packed, 0.15)
            saved = ratio(f"{name} bits", f"{name} words")
            print(
                f"    keystream of {group.bits} bits an element, taken apart: {saved:.2f} x words"
            )
    for name in GROUPS:
        print(f"{name:8} {1e3 * np.median([each[name] for each in times]):6.0f} ms")


if __name__ == "__main__":
    main()

"""How the training samples are shared out among the devices.

Every function returns a list of N arrays, the samples of the devices as ascending indices, int64.
No sample is on two devices, and each is on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError, no_such
from hpcfl.learning.base import PARTITION, THINNING, Dataset, Labels, generator_of

Parts = list[NDArray[np.int64]]

KINDS = ("iid", "shards", "two-digit", "dirichlet:CONCENTRATION", "writer")
PAPER_SHARDS = 300
LARGEST_CONCENTRATION = 1e6  # practically equal shares; far above, their arithmetic overflows


def make(spec: str, dataset: Dataset, devices: int, seed: int) -> Parts:
    """Share out the training samples of a data set as `spec`, one of `KINDS`, says.

    A UsageError says that there is no such partition, or that it cannot be made of these samples
    for so many devices.
    """
    labels = dataset.train_labels
    kind, _, argument = spec.partition(":")
    if kind == "dirichlet":
        return dirichlet(labels, devices, seed, _concentration(spec, argument))
    by_label = {"iid": iid, "shards": shards, "two-digit": label_shards}
    if spec in by_label:
        return by_label[spec](labels, devices, seed)
    if spec != "writer":
        raise no_such("partition", spec, KINDS)
    if dataset.writers is None:
        raise UsageError(
            f"the data set {dataset.name} does not say who wrote what: the partition writer is "
            "for femnist"
        )
    return by_writer(dataset.writers, devices, seed)


def _concentration(spec: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise UsageError(
            f"the partition {spec!r} has no concentration: give a number, as in dirichlet:0.5"
        ) from None


def iid(labels: Labels, devices: int, seed: int) -> Parts:
    """Shuffle the samples and deal them out; the devices' numbers differ by at most one."""
    _check(devices, len(labels), "samples")
    order = generator_of(seed, PARTITION).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, devices)]


def shards(labels: Labels, devices: int, seed: int, shards: int = PAPER_SHARDS) -> Parts:
    """Give each device 300/N shards of samples sorted by label: SparseSecAgg's non-IID setting.

    The samples are sorted by label and cut into 300 shards of equal size, which then has samples of
    at most two classes, unless a class has fewer samples than a shard. Each device is randomly
    given 300/N shards. Where N does not divide 300, some devices have one shard more than others,
    and where 300 does not divide the samples, some shards one sample more.
    """
    _check(devices, len(labels), "samples")
    _check(devices, shards, "shards")
    if shards > len(labels):
        raise UsageError(f"{len(labels)} samples cannot be cut into {shards} shards")
    cut = cut_by_label(labels, shards)
    dealt = np.array_split(generator_of(seed, PARTITION).permutation(shards), devices)
    return [np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in dealt]


def label_shards(labels: Labels, devices: int, seed: int, shards_per_device: int = 2) -> Parts:
    """Give each device two of 2N shards of samples sorted by label: FedSGD-DPC's setting.

    With ten classes and few devices most devices have two classes, whence its name on the command
    line, two-digit.
    """
    _check(devices, len(labels), "samples")
    return shards(labels, devices, seed, devices * shards_per_device)


def cut_by_label(labels: Labels, shards: int) -> Parts:
    """Cut the samples, sorted by label, into shards whose sizes differ by at most one.

    Samples of one class keep their order.
    """
    return np.array_split(np.argsort(labels, kind="stable"), shards)


def dirichlet(
    labels: Labels, devices: int, seed: int, concentration: float, minimum: int = 1
) -> Parts:
    """Divide each class among the devices in proportions drawn from a Dirichlet distribution.

    For every class, proportions are drawn from the symmetric Dirichlet distribution over the N
    devices, and its shuffled samples are cut accordingly (M. Yurochkin et al., "Bayesian
    nonparametric federated learning of neural networks", 2019). With a concentration near 0 a class
    is on one device; large values are nearly IID. A device with fewer samples than `minimum` is
    then given random ones of the device with the most, one at a time: drawing anew until all have
    enough, as others do, may never end and changes the distribution for all.
    """
    _check(devices, len(labels), "samples")
    if not 0 < concentration <= LARGEST_CONCENTRATION:
        raise UsageError(
            f"the concentration of the Dirichlet partition is {concentration:g}; it must be "
            f"positive and at most {LARGEST_CONCENTRATION:g}"
        )
    if devices * minimum > len(labels):
        raise UsageError(
            f"{len(labels)} samples do not give {minimum} to each of {devices} devices"
        )
    generator = generator_of(seed, PARTITION)
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(devices, concentration))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        # In random order, because cuts are rounded: with few samples of a class, the same devices
        # would otherwise always be those that get none.
        order = generator.permutation(devices)
        for device, part in zip(order, np.split(members, cuts), strict=True):
            owners[part] = device
    _top_up(owners, devices, minimum, generator)
    return _group(owners, devices)


def _top_up(
    owners: NDArray[np.int64], devices: int, minimum: int, generator: np.random.Generator
) -> None:
    """Change owners, in place, until each of the devices has the minimum."""
    counts = np.bincount(owners, minlength=devices)
    while counts.min() < minimum:
        poorest, richest = counts.argmin(), counts.argmax()
        owners[generator.choice(np.flatnonzero(owners == richest))] = poorest
        counts[poorest] += 1
        counts[richest] -= 1


def by_writer(writers: NDArray[np.int64], devices: int, seed: int) -> Parts:
    """Deal out whole writers: what one person wrote is on one device.

    The numbers of writers, not of samples, differ by at most one.
    """
    names, owned = np.unique(writers, return_inverse=True)
    _check(devices, len(names), "writers")
    device_of_writer = np.empty(len(names), np.int64)
    dealt = np.array_split(generator_of(seed, PARTITION).permutation(len(names)), devices)
    for device, hand in enumerate(dealt):
        device_of_writer[hand] = device
    return _group(device_of_writer[owned], devices)


def thin(parts: Parts, fraction: float, seed: int) -> Parts:
    """Leave every device a fraction of its samples, drawn at random, rounded up to whole samples.

    They keep their order. A smaller fraction of the same seed is part of a larger one.
    """
    if fraction == 1:
        return parts
    generator = generator_of(seed, THINNING)
    return [
        part[np.sort(generator.permutation(len(part))[: math.ceil(fraction * len(part))])]
        for part in parts
    ]


def class_table(labels: Labels, parts: Iterable[NDArray[np.int64]], classes: int) -> Labels:
    """Return each device's number of samples of each class, shape (N, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _group(owners: NDArray[np.int64], devices: int) -> Parts:
    """Return the samples of each device, given the device of each sample."""
    ends = np.cumsum(np.bincount(owners, minlength=devices))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])


def _check(devices: int, available: int, what: str) -> None:
    if devices < 1:
        raise UsageError(f"samples cannot be shared out among {devices} devices")
    if devices > available:
        raise UsageError(f"{available} {what} cannot be shared out among {devices} devices")

"""Partitions of the training samples among the devices.

Every function returns a list of N arrays: each device's samples as ascending indices, int64. Every
sample is on exactly one device.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError, no_such
from hpcfl.learning.base import PARTITION, THINNING, Dataset, Labels, generator_of

Parts = list[NDArray[np.int64]]

KINDS = ("iid", "shards", "two-digit", "dirichlet:CONCENTRATION", "writer")
PAPER_SHARDS = 300
LARGEST_CONCENTRATION = 1e6  # practically equal shares; the arithmetic overflows far above it


def make(spec: str, dataset: Dataset, devices: int, seed: int) -> Parts:
    """Partition the training samples of a data set according to `spec`, one of `KINDS`.

    Raise UsageError if there is no such partition, or if these samples cannot be partitioned in
    this way among `devices` devices.
    """
    labels = dataset.train_labels
    kind, _, argument = spec.partition(":")
    if spec == "writer":
        if dataset.writers is None:
            raise UsageError(
                f"the data set {dataset.name} does not record its writers: --partition writer is "
                "for femnist"
            )
        return by_writer(dataset.writers, devices, seed)
    _check(devices, len(labels), "samples")
    if spec == "iid":
        return iid(labels, devices, seed)
    if spec == "shards":
        return shards(labels, devices, seed)
    if spec == "two-digit":
        return shards(labels, devices, seed, 2 * devices)
    if kind == "dirichlet":
        try:
            concentration = float(argument)
        except ValueError:
            concentration = math.nan
        return dirichlet(labels, devices, seed, concentration)
    raise no_such("partition", spec, KINDS)


def iid(labels: Labels, devices: int, seed: int) -> Parts:
    """Shuffle the samples and deal them out; sample counts differ by at most one."""
    order = generator_of(seed, PARTITION).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, devices)]


def shards(labels: Labels, devices: int, seed: int, shards: int = PAPER_SHARDS) -> Parts:
    """Sort the samples by label, cut them into shards, and deal the shards out at random.

    300 shards give SparseSecAgg's non-IID setting. 2N shards, two per device, give FedSGD-DPC's.
    With ten classes and few devices, most devices then have two classes; hence the command-line
    name two-digit. Shard sizes, and shard counts per device, differ by at most one.
    """
    _check(devices, shards, "shards")
    if shards > len(labels):
        raise UsageError(f"{len(labels)} samples cannot be cut into {shards} shards")
    cut = np.array_split(np.argsort(labels, kind="stable"), shards)
    dealt = np.array_split(generator_of(seed, PARTITION).permutation(shards), devices)
    return [np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in dealt]


def dirichlet(labels: Labels, devices: int, seed: int, concentration: float) -> Parts:
    """Divide each class among the devices in proportions drawn from a Dirichlet distribution.

    For every class, proportions are drawn from the symmetric Dirichlet distribution over the N
    devices, and its shuffled samples are cut accordingly (M. Yurochkin et al., "Bayesian
    nonparametric federated learning of neural networks", 2019). A concentration near 0 puts a class
    on one device; large values are nearly IID. A device without samples then gets a random sample
    from the device with the most. Redrawing until every device has one, as others do, may never end
    and changes the distribution for all devices.
    """
    if not 0 < concentration <= LARGEST_CONCENTRATION:
        raise UsageError(
            "the Dirichlet partition needs a positive concentration of at most "
            f"{LARGEST_CONCENTRATION:g}, as in dirichlet:0.5"
        )
    generator = generator_of(seed, PARTITION)
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(devices, concentration))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        # The order is random because cuts are rounded: otherwise the same devices would always get
        # none of a class with few samples.
        order = generator.permutation(devices)
        for device, part in zip(order, np.split(members, cuts), strict=True):
            owners[part] = device
    while (counts := np.bincount(owners, minlength=devices)).min() == 0:
        richest = np.flatnonzero(owners == counts.argmax())
        owners[generator.choice(richest)] = counts.argmin()
    return _group(owners, devices)


def by_writer(writers: NDArray[np.int64], devices: int, seed: int) -> Parts:
    """Deal out whole writers: all samples of one writer are on one device.

    The devices' numbers of writers, not of samples, differ by at most one.
    """
    names, owned = np.unique(writers, return_inverse=True)
    _check(devices, len(names), "writers")
    device_of_writer = np.empty(len(names), np.int64)
    dealt = np.array_split(generator_of(seed, PARTITION).permutation(len(names)), devices)
    for device, hand in enumerate(dealt):
        device_of_writer[hand] = device
    return _group(device_of_writer[owned], devices)


def thin(parts: Parts, fraction: float, seed: int) -> Parts:
    """Keep a random fraction of every device's samples, rounded up to whole samples.

    Samples keep their order. With the same seed, a larger fraction contains a smaller one.
    """
    if fraction == 1:
        return parts
    generator = generator_of(seed, THINNING)
    return [
        part[np.sort(generator.permutation(len(part))[: math.ceil(fraction * len(part))])]
        for part in parts
    ]


def class_table(labels: Labels, parts: Parts, classes: int) -> Labels:
    """Return each device's number of samples of each class, shape (N, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _group(owners: NDArray[np.int64], devices: int) -> Parts:
    """Return the samples of each device, given the device of each sample."""
    ends = np.cumsum(np.bincount(owners, minlength=devices))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])


def _check(devices: int, available: int, what: str) -> None:
    if not 1 <= devices <= available:
        raise UsageError(f"{available} {what} cannot be shared out among {devices} devices")

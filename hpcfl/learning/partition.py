"""How the training samples are shared out among the devices.

Every function returns a list of N arrays, the samples of the devices as ascending indices, int64.
No sample is on two devices, and each is on one.
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
LARGEST_CONCENTRATION = 1e6  # practically equal shares; far above, their arithmetic overflows


def make(spec: str, dataset: Dataset, devices: int, seed: int) -> Parts:
    """Share out the training samples of a data set as `spec`, one of `KINDS`, says.

    A UsageError says that there is no such partition, or that it cannot be made of these samples
    for so many devices.
    """
    labels = dataset.train_labels
    kind, _, argument = spec.partition(":")
    if spec == "writer":
        if dataset.writers is None:
            raise UsageError(
                f"the data set {dataset.name} does not say who wrote what: the partition writer is "
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
    """Shuffle the samples and deal them out; the devices' numbers differ by at most one."""
    order = generator_of(seed, PARTITION).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, devices)]


def shards(labels: Labels, devices: int, seed: int, shards: int = PAPER_SHARDS) -> Parts:
    """Give each device some of the shards of samples sorted by label.

    With 300 shards this is SparseSecAgg's non-IID setting. With 2N shards, of which each device has
    two, it is FedSGD-DPC's; with ten classes and few devices most have two classes, whence its name
    on the command line, two-digit. Shards, and the devices' numbers of them, differ by at most one
    where they do not divide.
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
    nonparametric federated learning of neural networks", 2019). With a concentration near 0 a class
    is on one device; large values are nearly IID. A device without samples is then given a random
    one of the device with the most: drawing anew until all have one, as others do, may never end
    and changes the distribution for all.
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
        # In random order, because cuts are rounded: with few samples of a class, the same devices
        # would otherwise always be those that get none.
        order = generator.permutation(devices)
        for device, part in zip(order, np.split(members, cuts), strict=True):
            owners[part] = device
    while (counts := np.bincount(owners, minlength=devices)).min() == 0:
        richest = np.flatnonzero(owners == counts.argmax())
        owners[generator.choice(richest)] = counts.argmin()
    return _group(owners, devices)


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

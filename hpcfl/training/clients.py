"""The devices' data: partitioned on rank 0, and sent to the ranks that hold the devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.placement import Placement
from hpcfl.comm.world import World
from hpcfl.values import dataclass

# Resident memory of a rank without its data, as measured: Python, NumPy, MPI and torch.
RANK_BYTES = 350 * 10**6
# Values on other ranks of the fields of `Clients` that only rank 0 has.
_ELSEWHERE = {
    "test_inputs": np.empty(0, np.float32),
    "test_labels": np.empty(0, np.int64),
    "table": np.empty(0, np.int64),
    "incomplete": "",
}


@dataclass(frozen=True)
class Clients:
    """The data on one rank."""

    ids: NDArray[np.int64]  # of this rank's devices, in increasing order
    inputs: NDArray[np.float32]  # of this rank's devices, device after device
    labels: NDArray[np.int64]
    bounds: NDArray[np.int64]  # index of each local device's first sample; last, their total number
    sizes: NDArray[np.int64]  # number of samples of every device, shape (n,)
    shape: NDArray[np.int64]  # of a sample, followed by the number of classes
    # On rank 0 only, elsewhere empty:
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    table: NDArray[np.int64]  # number of samples of every device and class, shape (n, classes)
    incomplete: str  # clause that names missing parts of the published data; "" if complete

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return tuple(self.shape[:-1].tolist())

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.shape[-1])

    def samples(self, device: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the inputs and labels of one of this rank's devices."""
        place = int(np.searchsorted(self.ids, device))
        start, stop = self.bounds[place : place + 2].tolist()
        return self.inputs[start:stop], self.labels[start:stop]


def load(
    world: World,
    placement: Placement,
    name: str,
    data_dir: Path | None,
    partition: str,
    seed: int,
    fraction: float = 1.0,
) -> Clients:
    """Return this rank's part of a data set; every rank calls this.

    Every device keeps the given fraction of its samples in the partition. Raise HpcflError on every
    rank if the data cannot be read or partitioned, or do not fit into memory.
    """
    hosts = world.hosts()

    def divide() -> tuple[list[dict[str, NDArray[Any]]], dict[str, Any]]:
        found = _divide(placement, world.size, name, data_dir, partition, seed, fraction)
        _check_memory(hosts, found[0], placement.devices)
        return found

    parts, kept = world.first_alone(divide) or (None, _ELSEWHERE)
    mine: dict[str, Any] = world.distribute(parts)
    return Clients(**mine, **kept)


def _divide(
    placement: Placement,
    ranks: int,
    name: str,
    data_dir: Path | None,
    partition: str,
    seed: int,
    fraction: float,
) -> tuple[list[dict[str, NDArray[Any]]], dict[str, Any]]:
    """Return every rank's part, and the fields that stay on rank 0."""
    from hpcfl.learning import datasets
    from hpcfl.learning import partition as partitions

    data = datasets.load(name, data_dir, seed)
    shares = partitions.make(partition, data, placement.devices, seed)
    shares = partitions.thin(shares, fraction, seed)
    sizes = np.array([len(share) for share in shares], np.int64)
    parts: list[dict[str, NDArray[Any]]] = []
    for rank in range(ranks):
        local = placement.local(rank)
        indices = np.concatenate([*(shares[id] for id in local), np.empty(0, np.int64)])
        parts.append(
            {
                "ids": np.array(local, np.int64),
                "inputs": data.train_inputs[indices],
                "labels": data.train_labels[indices],
                "bounds": np.concatenate([[0], np.cumsum(sizes[np.array(local, np.int64)])]),
                "sizes": sizes,
                "shape": np.array([*data.shape, data.classes], np.int64),
            }
        )
    table = partitions.class_table(data.train_labels, shares, data.classes)
    kept = {
        "test_inputs": data.test_inputs,
        "test_labels": data.test_labels,
        "table": table,
        "incomplete": data.incomplete,
    }
    return parts, kept


def _check_memory(hosts: Sequence[str], parts: list[dict[str, NDArray[Any]]], devices: int) -> None:
    """Raise UsageError if the ranks of this host, each with torch, do not fit into its memory."""
    from hpcfl.system import machine

    here = hosts.count(hosts[0])
    data = max(part["inputs"].nbytes for part in parts)
    if len(parts) > 1:
        machine.check_memory(
            f"{here} ranks on this host, each with torch,",
            here * (RANK_BYTES + 2 * data),
            "let few ranks hold all devices, as in mpirun -n 3 hpcfl train ... --devices "
            f"{devices}",
        )

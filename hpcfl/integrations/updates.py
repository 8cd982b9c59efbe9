"""The change of a model as a vector, with the client's weight as one more coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import RefusedError, UsageError
from hpcfl.exchange import ServerRound

Arrays = Sequence[NDArray[Any]]


def length(arrays: Arrays, most: float | None) -> int:
    """Return d: the number of values, and one more if clients are weighted, by at most `most`."""
    return sum(array.size for array in arrays) + (most is not None)


def check_weighted(protocol: str, most: float | None) -> None:
    """Refuse weights where the coordinate that holds them may not be sent."""
    if most is not None and find(protocol).sparse_upload:
        raise UsageError(
            f"{protocol} sends a part of the coordinates, and a client's weight may not be among "
            "them: give most_examples=None, so that all clients count the same"
        )


def change(
    before: Arrays, after: Arrays, examples: float, most: float | None, clip: float
) -> NDArray[np.float32]:
    """Return the weighted change of a model, shape (d,).

    A client with `most` examples has the weight 1. The weight's coordinate is scaled by `clip`, the
    largest value of a coordinate.
    """
    if [array.shape for array in before] != [array.shape for array in after]:
        raise UsageError("the trained model has other shapes than the model that was sent")
    weight = 1.0
    if most is not None:
        weight = examples / most
        if not 0 < weight <= 1:
            raise RefusedError(
                f"the client has {examples:g} examples, and the server counts 1 to {most:g}: raise "
                "most_examples, or give None, so that all clients count the same"
            )
    parts = [
        (np.asarray(new, np.float64) - old).reshape(-1) * weight
        for old, new in zip(before, after, strict=True)
    ]
    if most is not None:
        parts.append(np.array([weight * clip]))
    return np.concatenate(parts).astype(np.float32)


def applied(before: Arrays, played: ServerRound, most: float | None) -> list[Any]:
    """Return the model after the mean change of the devices in a round."""
    mean = played.aggregate().mean
    if most is not None:
        mean = mean[:-1] * (played.offer.protocol.parameters.clip / mean[-1])
    found, start = [], 0
    for array in before:
        part = mean[start : start + array.size].reshape(array.shape)
        found.append(np.asarray(array + part, np.result_type(array, np.float32)))
        start += array.size
    return found

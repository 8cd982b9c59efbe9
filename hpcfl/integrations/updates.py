"""The change of a model as a vector, with the client's weight as one more coordinate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import RefusedError, UsageError
from hpcfl.exchange import ServerRound
from hpcfl.exchange.request import Offer
from hpcfl.options.protocols import ProofOptions, QuantisedOptions

Arrays = Sequence[NDArray[Any]]
MOST = "most_examples"  # in offers


def length(arrays: Arrays, most: float | None) -> int:
    """Return d: the number of values, and one more if clients are weighted, by at most `most`."""
    return sum(array.size for array in arrays) + (most is not None)


def check_weighted(protocol: str, most: float | None) -> None:
    """Refuse weights where the coordinate that holds them may not be sent."""
    if most is None:
        return
    if most <= 0:
        raise UsageError(f"most_examples is {most}; it must be above 0, or None")
    kind = find(protocol)
    if ProofOptions in kind.options:
        raise UsageError(
            f"{protocol} limits the norm of what a client sends, and a client would choose how "
            "much of it its weight takes: give most_examples=None, so that all count the same"
        )
    if kind.sparse_upload:
        raise UsageError(
            f"{protocol} sends a part of the coordinates, and a client's weight may not be among "
            "them: give most_examples=None, so that all clients count the same"
        )


def change(before: Arrays, after: Arrays, examples: float, offer: Offer) -> NDArray[np.float32]:
    """Return the weighted change of a model, shape (d,).

    A client with as many examples as the offer says at most has the weight 1. The coordinate of the
    weight is scaled by `clip`, the largest value of a coordinate.
    """
    most, clip = offer.about[MOST], offer.protocol.parameters.clip
    if [array.shape for array in before] != [array.shape for array in after]:
        raise UsageError("the trained model has other shapes than the model that was sent")
    weight = 1.0
    if most is not None:
        weight = examples / most
        if not 0 < weight <= 1:
            raise RefusedError(  # without the number, which stays here
                f"the client has no examples, or more than {most:g}: raise most_examples, or give "
                "None, so that all clients count the same"
            )
    parts = [
        (np.asarray(new, np.float64) - old).reshape(-1) * weight
        for old, new in zip(before, after, strict=True)
    ]
    if most is not None:
        parts.append(np.array([weight * clip]))
    vector = np.concatenate(parts).astype(np.float32)
    sizes = np.abs(vector)
    if QuantisedOptions in offer.protocol.options and (sizes > clip).any():
        share, largest = 100 * np.mean(sizes > clip), sizes.max()
        told = "%.2g %% of the coordinates are clipped to clip = %g; the largest is %g"
        logging.getLogger("hpcfl").warning(told, share, clip, largest)
    return vector


def applied(before: Arrays, played: ServerRound) -> list[Any]:
    """Return the model after the mean change of the devices in a round."""
    mean = played.aggregate().mean
    if played.offer.about[MOST] is not None:
        if mean[-1] <= 0:
            raise UsageError("no client has a share of most_examples that counts: lower it")
        mean = mean[:-1] * (played.offer.protocol.parameters.clip / mean[-1])
    found, start = [], 0
    for array in before:
        part = mean[start : start + array.size].reshape(array.shape)
        found.append(np.asarray(array + part, np.result_type(array, np.float32)))
        start += array.size
    return found

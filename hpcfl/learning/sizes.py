"""The number of parameters of a model, for rounds whose vectors are as long as the model's."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.learning import models
from hpcfl.options.names import DATASETS, MODELS
from hpcfl.system.plugins import load_object

# The data set that functions of a user's own are for.
_FOR_OWN = "digits"


@functools.cache
def parameters(model: str) -> int:
    """Return the number d of parameters of a model.

    Parameters
    ----------
    model : str
        One of `hpcfl.learning.models.NAMES`, which is counted without torch; or
        ``MODULE:FUNCTION``, a function that returns a `torch.nn.Module`, arrays in a list or a
        mapping, or d itself. A function that needs arguments is called with the shape of a sample
        and the number of classes, as for training. ``@DATASET`` behind either says of which data
        set these are, by default of the one that the model is for, or of the digits.

    Raises
    ------
    UsageError
        If there is no such model or data set, or what the function returns has no parameters.
    """
    name, at, data = model.partition("@")
    if at and data not in DATASETS:
        raise UsageError(
            f"--model is {model!r}, and there is no data set {data!r}; there are "
            f"{', '.join(DATASETS)}"
        )
    kind = DATASETS[data or MODELS.get(name, _FOR_OWN)]
    if ":" not in name:
        return sum(layer.parameters for layer in models.layers(name, kind.shape, kind.classes))
    try:
        function = load_object(name)
        arguments = () if _can_be_called(function) else (kind.shape, kind.classes)
        found = function(*arguments)
        count = _count(found)
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot load the model {name}: {models.cause(error)}") from error
    if arguments and _is_module(found):
        # Which also gives lazy layers their sizes.
        count = models.parameter_count(models.check_own(name, found, kind.shape, kind.classes))
    if count is None or count < 1:
        raise UsageError(
            f"{name} must return a torch.nn.Module, arrays in a list or a dict, or a number of "
            f"parameters of at least 1, not {type(found).__name__ if count is None else count}"
        )
    return count


def _can_be_called(function: Any) -> bool:
    """Return whether a function needs no arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _is_module(found: Any) -> bool:
    torch = sys.modules.get("torch")  # nobody has a module of its without it
    return torch is not None and isinstance(found, torch.nn.Module)


def _count(found: Any) -> int | None:
    """Return how many numbers something holds; None if it is nothing that holds parameters.

    Layers without a size yet, which torch refuses to count, hold none.
    """
    if _is_module(found):
        lazy = sys.modules["torch"].nn.parameter.is_lazy
        return sum(one.numel() for one in models.trained_parameters(found) if not lazy(one))
    if isinstance(found, Mapping | list | tuple):
        parts = found.values() if isinstance(found, Mapping) else found
        counts = [_count(part) for part in parts if not isinstance(part, int)]
        whole = len(counts) == len(parts) and None not in counts
        return sum(filter(None, counts)) if whole else None
    if callable(getattr(found, "numel", None)):
        return int(found.numel())
    if isinstance(found, np.ndarray):
        return found.size
    if isinstance(found, bool):
        return None
    try:
        return operator.index(found)
    except TypeError:
        return None

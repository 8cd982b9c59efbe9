"""The constants of FedSGD-DPC's bound: their symbols, and the file that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UsageError
from hpcfl.options.optimize import OptimizeOptions
from hpcfl.system import outputs

if TYPE_CHECKING:
    from hpcfl.algorithms.federated.queries import Constants

FORMAT = "hpcfl-constants/1"
# The paper's symbol of every constant that is shown; gamma follows from the others.
SYMBOLS = {
    "dim": "p",
    "samples": "d",
    "gradient_norm": "G",
    "smoothness": "lambda",
    "convexity": "mu",
    "heterogeneity": "Gamma",
    "distance": "Y0",
    "variance": "Lambda^2",
    "l1_clip": "xi1",
    "l2_clip": "xi2",
    "gamma": "gamma",
}


def asked(options: OptimizeOptions) -> dict[str, Any]:
    """Return the constants that are given by name, unchecked: options go before the file."""
    return (_read(options.constants) if options.constants else {}) | options.given


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror or error}): give a file of constants"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): --save-constants writes it") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} must have an object of constants by name, as in {{'dim': 7840}}")
    if found.pop("format", FORMAT) != FORMAT:
        raise UsageError(f"{path} is of another format than {FORMAT}: --save-constants writes it")
    return found


def save(constants: Constants, path: Path) -> None:
    """Write constants as --constants takes them."""
    document = {"format": FORMAT} | constants.as_dict()
    outputs.write(path, outputs.CONSTANTS, json.dumps(document, indent=2) + "\n")

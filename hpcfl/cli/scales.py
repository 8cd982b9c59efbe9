"""What `hpcfl report` and `hpcfl plot` have in common where they show scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hpcfl.cli.options import given
from hpcfl.errors import UsageError
from hpcfl.options.definition import make, options_of
from hpcfl.options.scaling import ContinuationOptions

if TYPE_CHECKING:
    from hpcfl.results.scaling import Study


def parted(typed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was typed of `ContinuationOptions`, and what a command was called with else."""
    known = options_of(ContinuationOptions)
    further = given({name: value for name, value in typed.items() if name in known})
    return further, {name: value for name, value in typed.items() if name not in known}


def continuing(further: Mapping[str, Any]) -> Callable[[Study], Study]:
    """Return what continues a study as was asked for; with nothing asked for, it stays as it is."""
    asked = make(ContinuationOptions, further)
    if not asked.continue_to:
        for name in further:
            raise UsageError(f"--{name.replace('_', '-')} is for --continue-to: give that too")
        return lambda study: study

    from hpcfl.costmodel.calibration import default_path, load
    from hpcfl.costmodel.continuing import continued
    from hpcfl.costmodel.network import Network

    # Refused before files are read.
    known = load(asked.calibration or default_path())
    network = Network(asked.network_gbps, asked.network_us)
    return lambda study: continued(study, known, network, asked.continue_to)

"""Runs the command line with planted secrets, and writes them down apart: SECRETS_FILE ARGUMENTS.

With `CRASH_IN` in the environment, a device's method of that name raises an error that is no
HpcflError, as a mistake in the program would.
"""

import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path

import pytest
from planted import Planted

import hpcfl.algorithms.aggregation
import hpcfl.benchmark.experiment
import hpcfl.cli
import hpcfl.rounds.timed
from hpcfl.algorithms.aggregation.secagg import SecAggDevice


def main():
    file, *arguments = sys.argv[1:]
    sys.argv = ["hpcfl", *arguments]
    for module in pkgutil.iter_modules(hpcfl.algorithms.aggregation.__path__):
        importlib.import_module(f"hpcfl.algorithms.aggregation.{module.name}")
    with pytest.MonkeyPatch.context() as patch:
        planted = Planted().plant(patch)
        if os.environ.get("CRASH_IN"):
            crash(os.environ["CRASH_IN"], patch)
        try:
            hpcfl.cli.main()
        finally:
            found = {secret.hex(): what for secret, what in planted.secrets.items()}
            Path(file).write_text(json.dumps(found))


def crash(method, patch):
    def crashing(device, *arguments):
        secret, pair, seed = device._secrets(16), device.state.masking, device.state.seed
        raise RuntimeError(f"a mistake in {method}, with {len(secret + pair.private + seed)} bytes")

    patch.setattr(SecAggDevice, method, crashing)


main()

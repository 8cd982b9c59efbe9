"""Calls a build after its commit: 0.1.0+gCOMMIT; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from hpcfl.system import revision  # noqa: E402

setup(version=revision.version_to_build(HERE))

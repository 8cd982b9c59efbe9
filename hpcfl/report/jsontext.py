"""JSON output of this package, with null in place of NaN and infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a value with None in place of NaN and infinities, and lists in place of tuples."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dumps(document: Any) -> str:
    """Return a document as indented JSON text; see `finite`."""
    return json.dumps(finite(document), indent=2, allow_nan=False)

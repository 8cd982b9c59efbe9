"""Percentiles of a handful of rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Percentiles:
    """Where the samples of a quantity lie; no distribution is assumed.

    Attributes
    ----------
    median, p95, max : float
        In the unit of the samples; all NaN if there are none. With fewer than 20 samples the
        95th percentile lies between the two largest.
    """

    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, samples: ArrayLike) -> Percentiles:
        """Return the percentiles of samples of any shape.

        Between two samples the value is interpolated linearly (method 7 of Hyndman and Fan,
        NumPy's default).
        """
        values = np.asarray(samples, np.float64)
        if values.size == 0:
            return cls(np.nan, np.nan, np.nan)
        median, p95 = np.percentile(values, (50, 95))
        return cls(float(median), float(p95), float(values.max()))

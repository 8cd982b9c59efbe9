"""The server's reconstruction of secrets from shares, some of which may be missing or wrong.

A holder that has no share of a secret, because the one it was sent was not a share, writes `ABSENT`
in each limb of its place: no field element. The others of its shares count.

Wrong ones contradict the others, and are found where more than the threshold were received; exactly
t are consistent, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import shamir
from hpcfl.crypto.groups import Elements
from hpcfl.errors import BelowThresholdError

ABSENT = 2**32 - 1

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Shares:
    """The shares that were received of some owners' secrets.

    Attributes
    ----------
    owners : ndarray of int64, shape (S,)
        Whose secrets they are, in increasing order.
    holders : ndarray of int64, shape (S, m)
        The ids of each owner's holders; arbitrary where no share was received.
    numbers : ndarray of int64, shape (m,)
        The holders' numbers in the secret sharing.
    received : ndarray of bool, shape (S, m)
        Which shares were received.
    values : ndarray of uint32, shape (S, m, width)
        The shares; zero where none was received.
    holding : int
        How many devices were sent shares of a secret.
    """

    owners: Ids
    holders: Ids
    numbers: Ids
    received: Flags
    values: Elements
    holding: int

    def without_absent(self) -> Shares:
        """Return the same with those that are marked as absent taken out."""
        absent = self.received & (self.values == ABSENT).all(axis=2)
        if not absent.any():
            return self
        values = np.where(absent[:, :, None], np.uint32(0), self.values)
        return replace(self, received=self.received & ~absent, values=values)

    def without_checks(self) -> Shares:
        """Return the same without the last value of each share, which only checks the others."""
        return replace(self, values=self.values[:, :, :-1])

    def with_at_least(self, count: int) -> Shares:
        """Return those of the owners of whom so many shares were received."""
        enough = self.received.sum(axis=1) >= count
        return self if enough.all() else self._of(np.flatnonzero(enough))

    def _of(self, rows: Ids) -> Shares:
        return replace(
            self,
            owners=self.owners[rows],
            holders=self.holders[rows],
            received=self.received[rows],
            values=self.values[rows],
        )

    def combine(self, threshold: int) -> Elements:
        """Return the secrets, shape (S, width), from the first `threshold` shares of each.

        Raises
        ------
        BelowThresholdError
            If an owner's are fewer.
        """
        count, width = len(self.owners), self.values.shape[2]
        if not count:
            return np.zeros((0, width), np.uint32)
        counts = self.received.sum(axis=1)
        if counts.min() < threshold:
            worst = int(np.argmin(counts))
            raise BelowThresholdError(
                f"{counts[worst]} of the {self.holding} devices that hold shares of device "
                f"{self.owners[worst]}'s secrets answered the unmasking request with one, at least "
                f"{threshold} are needed"
            )
        chosen = np.argsort(~self.received, axis=1, kind="stable")[:, :threshold]
        if (chosen == chosen[0]).all():
            columns = self.values[:, chosen[0]].transpose(1, 0, 2).reshape(threshold, -1)
            holders = tuple(self.numbers[chosen[0]].tolist())
            return shamir.combine(columns, holders).reshape(count, width)
        values = np.take_along_axis(self.values, chosen[:, :, None], axis=1)
        return shamir.combine_each(values, self.numbers[chosen])

    def fits(self, threshold: int) -> Flags:
        """Return whether each owner's shares lie on polynomials of degree below `threshold`."""
        return shamir.consistent(self.values, self.numbers, self.received, threshold)


def reconcile(shares: Shares, threshold: int) -> Shares:
    """Return the shares without those that contradict the others.

    One wrong share of an owner is found where at least t + 2 were received: without it the others
    fit, and no two of them can be taken for it, as t + 1 that fit have one polynomial. Where
    leaving one out does not help, none of the owner's shares is any good.

    Parameters
    ----------
    shares : Shares
        What was received.
    threshold : int
        Number t of shares that reconstruct a secret.
    """
    fits = shares.fits(threshold)
    if fits.all():
        return shares
    received = shares.received.copy()
    # A holder that answers falsely about one is likely to do so about others.
    liar = -1
    for row in np.flatnonzero(~fits).tolist():
        received[row], liar = _without_one(shares, row, threshold, liar)
    return replace(shares, received=received)


def _without_one(shares: Shares, row: int, threshold: int, suspect: int) -> tuple[Flags, int]:
    """Return which of an owner's shares are left without the wrong one, and its holder.

    None are left if it cannot be found. The suspect, if it is one of the holders, is tried first.
    """
    received, holders = shares.received[row], shares.holders[row]
    places = np.flatnonzero(received)
    # Of t + 1 shares, any t are consistent.
    if places.size > threshold + 1:
        for tried in (places[holders[places] == suspect], places):
            patterns = np.repeat(received[None], tried.size, axis=0)
            patterns[np.arange(tried.size), tried] = False
            good = np.flatnonzero(_fit(shares, row, patterns, threshold)) if tried.size else tried
            if good.size == 1:
                return patterns[good[0]], int(holders[tried[good[0]]])
    return np.zeros_like(received), suspect


def _fit(shares: Shares, row: int, patterns: Flags, threshold: int) -> Flags:
    """Return which patterns of an owner's shares do not contradict themselves."""
    values = np.broadcast_to(shares.values[row], (len(patterns), *shares.values[row].shape))
    return shamir.consistent(values, shares.numbers, patterns, threshold)

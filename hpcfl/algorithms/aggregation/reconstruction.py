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

from hpcfl.comm.phases import Ids
from hpcfl.crypto import shamir
from hpcfl.crypto.groups import FQ, Elements, Field
from hpcfl.errors import BelowThresholdError

ABSENT = 2**32 - 1

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Shares:
    """The shares that were received of some owners' secrets."""

    owners: Ids  # shape (S,): whose secrets they are, increasing
    holders: Ids  # shape (S, m): each owner's holders; arbitrary where no share was received
    numbers: Ids  # shape (m,): the holders' numbers in the secret sharing
    received: Flags  # shape (S, m)
    values: Elements  # shape (S, m, width); zero where none was received
    holding: int  # how many devices were sent shares of a secret
    field: Field = FQ

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
        return replace(
            self,
            owners=self.owners[enough],
            holders=self.holders[enough],
            received=self.received[enough],
            values=self.values[enough],
        )

    def combine(self, threshold: int) -> Elements:
        """Return the secrets, shape (S, width), from the first `threshold` shares of each.

        BelowThresholdError if an owner's are fewer.
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


def reconcile(shares: Shares, threshold: int) -> Shares:
    """Return the shares without those that contradict the others.

    One wrong share of an owner is found where at least t + 2 were received: without it the others
    fit, and no two of them can be taken for it, as t + 1 that fit have one polynomial. Where
    leaving one out does not help, none of the owner's shares is any good.
    """
    fits = _consistent(shares, shares.values, shares.received, threshold)
    if fits.all():
        return shares
    received = shares.received.copy()
    # A holder that answers falsely about one is likely to do so about others.
    liar = -1
    for row in np.flatnonzero(~fits).tolist():
        received[row], liar = _without_one(shares, row, threshold, liar)
    return replace(shares, received=received)


def _consistent(shares: Shares, values: Elements, received: Flags, threshold: int) -> Flags:
    return shamir.consistent(values, shares.numbers, received, threshold, shares.field)


def _without_one(shares: Shares, row: int, threshold: int, suspect: int) -> tuple[Flags, int]:
    """Return which of an owner's shares are left without the wrong one, and its holder.

    None are left if it cannot be found. The suspect, if it is one of the holders, is tried first.
    """
    received, holders, values = shares.received[row], shares.holders[row], shares.values[row]
    places = np.flatnonzero(received)
    # Of t + 1 shares, any t are consistent.
    if places.size > threshold + 1:
        for tried in (places[holders[places] == suspect], places):
            patterns = np.repeat(received[None], tried.size, axis=0)
            patterns[np.arange(tried.size), tried] = False
            same = np.broadcast_to(values, (tried.size, *values.shape))
            good = np.flatnonzero(_consistent(shares, same, patterns, threshold))
            if good.size == 1:
                return patterns[good[0]], int(holders[tried[good[0]]])
    return np.zeros_like(received), suspect

"""The server's reconstruction of secrets from shares, some of which may be missing or wrong.

A holder that has no share of a secret, because the one it was sent was no share, writes `ABSENT`
in each limb of its place: no field element. The others of its shares count.

Wrong shares are found by their contradicting the others, where more came than the threshold; with
exactly t shares any values are consistent, and only a mask key, whose public half is known, can be
checked. Who lies cannot be told for certain: a holder whose share is off has changed it, or was
dealt it so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import shamir
from hpcfl.crypto.groups import Elements
from hpcfl.errors import BelowThresholdError, MessageError

ABSENT = 2**32 - 1

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
Right = Callable[[int, Elements], bool]


@dataclass(frozen=True)
class Shares:
    """The shares that came of some owners' secrets.

    Attributes
    ----------
    owners : ndarray of int64, shape (S,)
        Whose secrets they are, in increasing order.
    holders : ndarray of int64, shape (S, m)
        The ids of each owner's holders; arbitrary where no share came.
    numbers : ndarray of int64, shape (m,)
        The holders' numbers in the secret sharing.
    came : ndarray of bool, shape (S, m)
        Which shares came.
    values : ndarray of uint32, shape (S, m, width)
        The shares; zero where none came.
    holding : int
        How many devices were sent shares of a secret.
    """

    owners: Ids
    holders: Ids
    numbers: Ids
    came: Flags
    values: Elements
    holding: int

    def without_absent(self) -> Shares:
        """Return the same with those that are marked as absent taken out."""
        absent = self.came & (self.values == ABSENT).all(axis=2)
        if not absent.any():
            return self
        values = np.where(absent[:, :, None], np.uint32(0), self.values)
        return replace(self, came=self.came & ~absent, values=values)

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
        counts = self.came.sum(axis=1)
        if counts.min() < threshold:
            worst = int(np.argmin(counts))
            raise BelowThresholdError(
                f"{counts[worst]} of the {self.holding} devices that hold shares of device "
                f"{self.owners[worst]}'s secrets answered the unmasking request with one, at least "
                f"{threshold} are needed"
            )
        chosen = np.argsort(~self.came, axis=1, kind="stable")[:, :threshold]
        if (chosen == chosen[0]).all():
            columns = self.values[:, chosen[0]].transpose(1, 0, 2).reshape(threshold, -1)
            holders = tuple(self.numbers[chosen[0]].tolist())
            return shamir.combine(columns, holders).reshape(count, width)
        values = np.take_along_axis(self.values, chosen[:, :, None], axis=1)
        return shamir.combine_each(values, self.numbers[chosen])

    def part(self, owner: int, came: Flags) -> Shares:
        """Return one owner's shares, as often as there are rows of `came`, which say which."""
        rows = np.full(len(came), owner)
        values = np.broadcast_to(self.values[owner], (len(came), *self.values[owner].shape))
        return replace(
            self, owners=self.owners[rows], holders=self.holders[rows], came=came, values=values
        )


def check(shares: Shares, threshold: int, right: Right | None) -> tuple[Shares, dict[int, int]]:
    """Return the shares without those that contradict the others, and who sent these.

    Parameters
    ----------
    shares : Shares
        What came.
    threshold : int
        Number t of shares that reconstruct a secret.
    right : callable, optional
        Says of an owner's id and a secret whether it is the owner's, where that can be known.

    Returns
    -------
    shares : Shares
    wrong : dict of int to int
        The holders whose shares were taken out, and an owner of such a share of each.

    Raises
    ------
    MessageError
        If shares contradict each other and no one of them is found to be the wrong one.
    """
    fits = shamir.consistent(shares.values, shares.numbers, shares.came, threshold)
    wrong: dict[int, int] = {}
    if fits.all():
        return shares, wrong
    came = shares.came.copy()
    for owner in np.flatnonzero(~fits).tolist():
        known = np.isin(shares.holders[owner], list(wrong))
        left = _without(shares, owner, known, threshold, right)
        if left is None:
            left = _without_one(shares, owner, threshold, right)
        for place in np.flatnonzero(came[owner] & ~left).tolist():
            wrong.setdefault(int(shares.holders[owner, place]), int(shares.owners[owner]))
        came[owner] = left
    return replace(shares, came=came), wrong


def _without(
    shares: Shares, owner: int, known: Flags, threshold: int, right: Right | None
) -> Flags | None:
    """Return an owner's shares without those of known liars, if these were all that was wrong."""
    left = shares.came[owner] & ~known
    if not (shares.came[owner] & known).any() or left.sum() < threshold:
        return None
    return left if _right(shares.part(owner, left[None]), threshold, right)[0] else None


def _without_one(shares: Shares, owner: int, threshold: int, right: Right | None) -> Flags:
    """Return an owner's shares without the one that contradicts all others."""
    came = shares.came[owner]
    places = np.flatnonzero(came)
    # With a share less nothing would be left to contradict, unless the secret can be checked.
    if places.size > threshold + (right is None):
        patterns = np.repeat(came[None], places.size, axis=0)
        patterns[np.arange(places.size), places] = False
        good = np.flatnonzero(_right(shares.part(owner, patterns), threshold, right))
        if good.size == 1:
            return patterns[good[0]]
    raise MessageError(
        "unmask",
        "the survivors",
        f"the {places.size} shares of a secret of device {shares.owners[owner]} contradict each "
        f"other, {threshold} being enough, and no one of them is found to be the wrong one",
    )


def _right(shares: Shares, threshold: int, right: Right | None) -> Flags:
    """Return whether each row's shares are consistent, and their secret the right one."""
    fits = shamir.consistent(shares.values, shares.numbers, shares.came, threshold)
    if right is None or not fits.any():
        return fits
    secrets = shares.combine(threshold)
    return np.array(
        [
            bool(one) and right(owner, secret)
            for one, owner, secret in zip(fits, shares.owners.tolist(), secrets, strict=True)
        ]
    )

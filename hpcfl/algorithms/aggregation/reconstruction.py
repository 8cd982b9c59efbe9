"""The server's reconstruction of secrets from shares, some of which may be missing or wrong.

A holder that received no valid share of a secret writes `ABSENT`, which is not a field element, in
each limb of that share. Its other shares count.

Wrong shares contradict the others. To find w wrong shares, t + 2 w shares must have been received;
exactly t shares are always consistent.
"""

from __future__ import annotations

import numpy as np

from hpcfl.algorithms.aggregation.messages import Flags
from hpcfl.comm.phases import Ids
from hpcfl.crypto import coding, shamir
from hpcfl.crypto.groups import FQ, Elements, Field
from hpcfl.errors import BelowThresholdError
from hpcfl.values import dataclass, replace

ABSENT = 2**32 - 1


@dataclass(frozen=True)
class Shares:
    """The received shares of some owners' secrets."""

    owners: Ids  # shape (S,): the owners of the secrets, increasing
    holders: Ids  # shape (S, m): each owner's holders; arbitrary where no share was received
    numbers: Ids  # shape (m,): the holders' numbers in the secret sharing
    received: Flags  # shape (S, m)
    values: Elements  # shape (S, m, width); zero where none was received
    holding: int  # number of devices that were sent shares of a secret
    field: Field = FQ

    def without_absent(self) -> Shares:
        """Return the shares without those that are marked as absent."""
        absent = self.received & (self.values == ABSENT).all(axis=2)
        if not absent.any():
            return self
        values = np.where(absent[:, :, None], np.uint32(0), self.values)
        return replace(self, received=self.received & ~absent, values=values)

    def without_checks(self) -> Shares:
        """Return the shares without the last value of each, which only checks the others."""
        return replace(self, values=self.values[:, :, :-1])

    def with_at_least(self, count: int) -> Shares:
        """Return the shares of the owners with at least `count` received shares."""
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

        Raise BelowThresholdError if an owner has fewer shares.
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
    """Return the shares without the wrong ones.

    Among n received shares of an owner's secret, up to floor((n - t) / 2) wrong ones are always
    found, because no other polynomial of degree t - 1 agrees with as many shares. If the shares
    still contradict each other without that many, all shares of the owner are left out.
    """
    wrong = np.flatnonzero(~_consistent(shares, threshold))
    if not wrong.size:
        return shares
    received = shares.received.copy()
    patterns, which = np.unique(shares.received[wrong], axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        rows, places = wrong[which.reshape(-1) == index], np.flatnonzero(pattern)
        most = (places.size - threshold) // 2
        # Few wrong shares are found faster than many.
        for tried in [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]:
            some = replace(shares, received=shares.received[rows], values=shares.values[rows])
            # Without all possibly wrong shares, t + 1 shares are left to compare.
            few = np.zeros(rows.size, np.bool_)
            if tried > 0:
                found = _wrong_places(some, places, tried)
                few = found.sum(axis=1) <= tried
                some = replace(some, received=some.received & ~found)
            fits = few & _consistent(some, threshold)
            received[rows] = some.received & fits[:, None]
            rows = rows[~fits]
            if not rows.size:
                break
    return replace(shares, received=received)


def _wrong_places(shares: Shares, places: Ids, most: int) -> Flags:
    """Return the wrong shares among these places, at most `most` of each owner."""
    owners, holders, width = shares.values.shape
    # A wrong share may have some correct values.
    words = shares.values[:, places].transpose(0, 2, 1).reshape(-1, places.size)
    found = coding.wrong_places(words, shares.numbers[places] + 1, most, shares.field)
    wrong = np.zeros((owners, holders), np.bool_)
    wrong[:, places] = found.reshape(owners, width, -1).any(axis=1)
    return wrong


def _consistent(shares: Shares, threshold: int) -> Flags:
    return shamir.consistent(
        shares.values, shares.numbers, shares.received, threshold, shares.field
    )


def to_leave_out(missing: Flags, holders: Ids, most: int) -> Flags:
    """Return the owners to leave out, as flags of shape (S,).

    `missing`, shape (S, m), flags the holders without a valid share of an owner's secret;
    `holders`, their ids, have that shape or (m,). In each such pair one party is at fault. If more
    than `most` holders lack an owner's share, the party in most of these pairs is taken to be at
    fault: the owner is left out, or the holder's claims no longer count. An honest owner is never
    left out if at most `most` of its holders are at fault.
    """
    missing, holders = missing.copy(), np.broadcast_to(holders, missing.shape)
    out = np.zeros(len(missing), np.bool_)
    while ((by_owner := missing.sum(axis=1)) > most).any():
        by_holder = np.bincount(holders[missing])
        owner = int(np.argmax(np.where(by_owner > most, by_owner, 0)))
        if by_holder.max() >= by_owner[owner]:
            missing &= holders != np.argmax(by_holder)
        else:
            out[owner], missing[owner] = True, False
    return out

"""How the two secrets of a device are shared, and how inconsistent shares are detected.

Each secret is shared with an additional uniform element, its check r. After all shares are dealt,
the server draws a challenge with one coefficient c_k for every limb. The holder at the point x
answers z(x) = r(x) + sum of c_k s_k(x) from its shares. Answers about an honest dealer lie on one
polynomial of degree t - 1. Each wrong share passes with probability 1 / q at most, because c was
unknown to the dealer (Schwartz 1980). As r is uniform and used once, the answers say nothing about
the secret. Later a holder sends its share with the check, and both must fit its answer.

The challenge must be the same for all holders: a server that gives each a different one learns the
secret. If the server may cheat (module `active`) there is no challenge, and all coefficients are 1;
this detects only dealers that do not exploit the known coefficients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.messages import Flags, parse_vector
from hpcfl.algorithms.aggregation.reconstruction import ABSENT, Shares, reconcile, to_leave_out
from hpcfl.algorithms.aggregation.sealed import TAG_BYTES
from hpcfl.algorithms.aggregation.topology import Links
from hpcfl.comm.phases import Ids, Payload
from hpcfl.crypto import keys, shamir
from hpcfl.crypto.groups import FQ, Elements
from hpcfl.crypto.keystream import KEY_BYTES as SEED_BYTES
from hpcfl.errors import BelowThresholdError, MessageError
from hpcfl.values import dataclass, field

CHALLENGE_BYTES = 16
MASK_KEY_LIMBS = shamir.limb_count(keys.KEY_BYTES)
SEED_LIMBS = shamir.limb_count(SEED_BYTES)
# Elements that a holder has of each secret: a share of every limb and of the check.
KEY_SHARE = MASK_KEY_LIMBS + 1
SEED_SHARE = SEED_LIMBS + 1
# Size of the message to a holder: the shares of both secrets, sealed by AES-GCM.
SHARE_BYTES = 4 * (KEY_SHARE + SEED_SHARE) + TAG_BYTES
ANSWERS = 2


def deal(
    private: bytes,
    seed: bytes,
    threshold: int,
    numbers: tuple[int, ...],
    secrets: keys.SecretSource,
) -> Elements:
    """Return the shares of a mask key's private half and of a private-mask seed.

    The shape is (holders, KEY_SHARE + SEED_SHARE), uint32, with one row for each holder in
    `numbers`; any `threshold` rows reconstruct the secrets.
    """
    width, degree = KEY_SHARE + SEED_SHARE, threshold - 1
    uniform = FQ.elements([secrets(SEED_BYTES)], [ANSWERS + degree * width])
    checks, coefficients = uniform[:ANSWERS], uniform[ANSWERS:].reshape(degree, width)
    limbs = np.concatenate(
        [shamir.to_limbs(private), checks[:1], shamir.to_limbs(seed), checks[1:]]
    )
    return shamir.split(limbs, coefficients, numbers)


@dataclass(frozen=True)
class Challenge:
    """The coefficients of a challenge, for the limbs of both secrets."""

    coefficients: NDArray[np.uint64]  # shape (KEY_SHARE + SEED_SHARE,); 1 for the checks

    @classmethod
    def of(cls, seed: bytes) -> Challenge:
        """Return the challenge that follows from a seed of `CHALLENGE_BYTES`."""
        drawn = FQ.elements([seed], [MASK_KEY_LIMBS + SEED_LIMBS]).astype(np.uint64)
        return cls(np.insert(drawn, [MASK_KEY_LIMBS, drawn.size], 1))

    @classmethod
    def known(cls) -> Challenge:
        """Return the publicly known challenge, whose coefficients are all 1."""
        return cls(np.ones(KEY_SHARE + SEED_SHARE, np.uint64))

    def answers(self, shares: Elements) -> Elements:
        """Return answers, shape (n, ANSWERS), from shares, shape (n, KEY_SHARE + SEED_SHARE).

        Rows of `ABSENT`, which mark missing shares, give rows of `ABSENT`.
        """
        of_keys, of_seeds = shares[:, :KEY_SHARE], shares[:, KEY_SHARE:]
        found = np.stack([self._answer(of_keys, False), self._answer(of_seeds, True)], axis=1)
        found[_absent(shares)] = ABSENT
        return found

    def fits(self, shares: Elements, answers: Elements, seeds: bool) -> Flags:
        """Return which shares fit the answers, shape (n,); of `seeds`, or else of mask keys."""
        return self._answer(shares, seeds) == answers

    def _answer(self, shares: Elements, seeds: bool) -> Elements:
        q = np.uint64(FQ.modulus)
        coefficients = self.coefficients[KEY_SHARE:] if seeds else self.coefficients[:KEY_SHARE]
        return ((shares * coefficients % q).sum(axis=1) % q).astype(np.uint32)


@dataclass
class Dealings:
    """The server's record of the dealers with valid shares, according to holders' answers.

    A dealer is `expelled` if more of its holders lack a valid share than may be at fault. All other
    dealers have enough valid shares left, however the rest behave. If only t + 1 holders answered,
    a false answer cannot be told from a false dealer, and the round ends, unless the dealer itself
    did not answer.
    """

    challenge: Challenge
    # By holder: the owners of its shares, its answers, and the owners of wrong answers.
    owners: dict[int, Ids] = field(default_factory=dict)
    answers: dict[int, Elements] = field(default_factory=dict)
    wrong: dict[int, set[int]] = field(default_factory=dict)
    expelled: frozenset[int] = frozenset()

    def receive(self, holder: int, owners: Ids, payload: Payload) -> None:
        """Check and keep a holder's answers for these owners."""
        name = f"device {holder}"
        answers = parse_vector(payload, "<u4", ANSWERS * owners.size, "share_keys", name)
        answers = answers.reshape(-1, ANSWERS)
        _check_elements(answers, "share_keys", name)
        # A copy: the transport uses its memory again.
        self.owners[holder], self.answers[holder] = owners, answers.copy()

    def settle(self, links: Links, owners: Flags, most: int) -> None:
        """Accept the answers that lie on one polynomial with enough others.

        `most` is the number of each owner's holders that may be at fault.
        Raise BelowThresholdError if only t + 1 holders answered, so that a false dealer cannot be
        told from a false holder.
        """
        received = links.collect(self.answers, owners, ANSWERS)
        right = reconcile(received, links.threshold)
        if int(right.received.sum()) == sum(answered.size for answered in self.owners.values()):
            return
        # Answers that are marked as absent count here, too.
        answered = {id: np.zeros_like(answers) for id, answers in self.answers.items()}
        all_received = links.collect(answered, owners, ANSWERS).received
        counts, off = all_received.sum(axis=1), all_received & ~right.received
        self._check_clear(received, right, counts, links.threshold + 1)
        # Answers about an honest dealer lie on a polynomial.
        lost: Flags = np.logical_not(right.received.any(axis=1))
        # Any t answers lie on one polynomial, so they prove nothing if all others contradict.
        lost |= (counts > links.threshold + 1) & (right.received.sum(axis=1) <= links.threshold)
        disputed = off & ~lost[:, None]
        lost |= to_leave_out(disputed, right.holders, most)
        self.expelled = frozenset(right.owners[lost].tolist())
        rows, places = np.nonzero(off)
        pairs = zip(right.owners[rows].tolist(), right.holders[rows, places].tolist(), strict=True)
        for owner, holder in pairs:
            self.wrong.setdefault(holder, set()).add(owner)

    def _check_clear(self, received: Shares, right: Shares, counts: Ids, few: int) -> None:
        """End the round if a single false answer would explain the answers about a dealer."""
        contradicting = received.received & ~right.received
        unclear = (counts == few) & (contradicting.sum(axis=1) == few)
        # A dealer that did not answer itself counts as gone, so expelling it costs nothing.
        unclear &= np.isin(received.owners, list(self.answers))
        if unclear.any():
            owner = received.owners[np.argmax(unclear)]
            raise BelowThresholdError(
                f"the {few} answers about the shares of device {owner}'s secrets contradict each "
                f"other; it would take {few + 1} to tell whether that device or one of those that "
                "answered is at fault"
            )

    def verified(self, holder: int, owners: Ids, shares: Elements, seeds: bool) -> Elements:
        """Return a holder's shares of some owners' secrets, with `ABSENT` for unusable ones.

        They are of `seeds` or else of mask keys, shape (n, SEED_SHARE or KEY_SHARE), with owners in
        the order of the holder's answers. Raise MessageError if a share does not fit its answer.
        """
        name = f"device {holder}"
        _check_elements(shares, "unmask", name)
        useless = np.ones(owners.size, np.bool_)
        if holder in self.answers:
            known = self.owners[holder]
            asked = np.zeros(int(known.max(initial=-1)) + 1, np.bool_)
            asked[owners] = True
            answers = self.answers[holder][asked[known]]
            useless = _absent(shares) | _absent(answers)
            lies = ~useless & ~self.challenge.fits(shares, answers[:, int(seeds)], seeds)
            if lies.any():
                owner = owners[np.argmax(lies)]
                reason = f"its share of a secret of device {owner} is not what it answered for"
                raise MessageError("unmask", name, reason)
            if holder in self.wrong:
                useless |= np.isin(owners, list(self.wrong[holder]))
        return np.where(useless[:, None], np.uint32(ABSENT), shares)


def _absent(rows: Elements) -> Flags:
    return (rows == ABSENT).all(axis=1)


def _check_elements(rows: Elements, phase: str, sender: str) -> None:
    beyond = (rows >= FQ.modulus).any(axis=1)
    if (beyond & ~_absent(rows)).any():
        raise MessageError(phase, sender, "a share is not a field element")

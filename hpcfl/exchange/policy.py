"""What a client agrees to, whatever its server asks."""

from __future__ import annotations

import math

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.errors import RefusedError, UsageError
from hpcfl.exchange.request import Offer
from hpcfl.values import dataclass

# `sparse` reveals values that one device alone has sent; in `ckks`, each device can decrypt all.
HIDING = tuple(name for name in PROTOCOLS if name not in ("fedavg", "sparse", "ckks"))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits of a client; it refuses a round beyond any of them."""

    protocols: tuple[str, ...] = HIDING
    devices: int = 3  # fewest in a round
    threshold: int = 2  # fewest in a sum: with fewer, the round must end
    gamma: float = 0.1  # least fraction of the devices that may collude without harm
    failure: float = 2.0**-40  # largest probability that what the protocol promises fails
    helpers: int = 2  # fewest, of protocols with helpers
    clip: float = float("inf")  # largest magnitude of a coordinate
    bits: int = 32  # most bits of a coordinate

    def __post_init__(self) -> None:
        if isinstance(self.protocols, str):
            raise UsageError(f"protocols is {self.protocols!r}; it must be a tuple of names")

    def check(self, offer: Offer) -> None:
        """Raise RefusedError if a round exceeds a limit."""
        # The name comes first: a server must not decide which code is loaded.
        if offer.name not in self.protocols:
            accepted = ", ".join(self.protocols)
            raise RefusedError(
                f"the server asks for {offer.name}, and this client accepts {accepted}"
            )
        protocol = offer.protocol
        plan, helpers = protocol.parameters, protocol.helpers or math.inf  # none are enough, too
        fewest, failure = protocol.needed_in_sum, sum(one.worst for one in protocol.promises())
        most = [(failure, self.failure, "as the probability of a failure")]
        if isinstance(protocol, QuantisedProtocol):
            fewest = min(fewest, protocol.most_in_sum(plan.devices)[0])
            most += [(plan.clip, self.clip, "as clip"), (plan.arithmetic.bits, self.bits, "bits")]
        least = [(plan.devices, self.devices, "devices"), (plan.gamma, self.gamma, "as gamma")]
        least += [(fewest, self.threshold, "devices in a sum"), (helpers, self.helpers, "helpers")]
        for accepts, limits in (("at least", least), ("at most", most)):
            for asked, limit, what in limits:
                if asked < limit if limits is least else asked > limit:
                    raise RefusedError(
                        f"the server asks for {asked:g} {what}, and this client accepts {accepts} "
                        f"{limit:g}"
                    )

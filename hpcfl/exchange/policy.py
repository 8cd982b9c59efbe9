"""What a client agrees to, whatever its server asks."""

from __future__ import annotations

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
        protocol, at_least, at_most = offer.protocol, "at least", "at most"
        plan, failure = protocol.parameters, sum(one.worst for one in protocol.promises())
        fewest, helpers = protocol.needed_in_sum, protocol.helpers
        if isinstance(protocol, QuantisedProtocol):
            fewest = min(fewest, protocol.most_in_sum(plan.devices)[0])
        limits: list[tuple[bool, str, str, float]] = [
            (plan.devices < self.devices, f"{plan.devices} devices", at_least, self.devices),
            (fewest < self.threshold, f"sums of {fewest} devices", at_least, self.threshold),
            (0 < helpers < self.helpers, f"{helpers} helpers", at_least, self.helpers),
            (plan.gamma < self.gamma, f"gamma {plan.gamma:g}", at_least, self.gamma),
            (failure > self.failure, f"a failure probability of {failure:.2g}", at_most,
             self.failure),
        ]  # fmt: skip
        if isinstance(protocol, QuantisedProtocol):
            bits = plan.arithmetic.bits
            limits += [
                (plan.clip > self.clip, f"values up to {plan.clip:g}", at_most, self.clip),
                (bits > self.bits, f"{bits} bits", at_most, self.bits),
            ]
        for beyond, asked, accepts, limit in limits:
            if beyond:
                raise RefusedError(
                    f"the server asks for {asked}, and this client accepts {accepts} {limit:g}"
                )

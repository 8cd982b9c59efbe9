"""What a client agrees to, whatever its server asks."""

from __future__ import annotations

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol
from hpcfl.errors import RefusedError
from hpcfl.exchange.request import Offer
from hpcfl.values import dataclass

LARGEST_CLIP = float("inf")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits of a client; it refuses a round beyond any of them."""

    protocols: tuple[str, ...] = ()  # the accepted ones; () for all but fedavg
    devices: int = 3  # fewest in a round
    threshold: int = 2  # fewest in a sum: with fewer, the round must end
    clip: float = LARGEST_CLIP  # largest magnitude of a coordinate
    bits: int = 32  # most bits of a coordinate

    def check(self, offer: Offer) -> None:
        """Raise RefusedError if a round exceeds a limit."""
        # The name comes first: a server must not decide which code is loaded.
        accepted = self.protocols or tuple(name for name in PROTOCOLS if name != "fedavg")
        if offer.name not in accepted:
            raise RefusedError(
                f"the server asks for {offer.name}, and this client accepts {', '.join(accepted)}"
            )
        protocol = offer.protocol
        plan = protocol.parameters
        fewest = protocol.needed_in_sum
        limits: list[tuple[bool, str, float, str]] = [
            (plan.devices < self.devices, f"{plan.devices} devices", self.devices, "at least"),
            (fewest < self.threshold, f"{fewest} in a sum", self.threshold, "at least"),
        ]
        if isinstance(protocol, QuantisedProtocol):
            limits += [
                (plan.clip > self.clip, f"values up to {plan.clip:g}", self.clip, "at most"),
                (plan.arithmetic.bits > self.bits, f"{plan.group}", self.bits, "at most"),
            ]
        for beyond, asked, limit, most in limits:
            if beyond:
                raise RefusedError(
                    f"the server asks for {asked}, and this client accepts {most} {limit:g}"
                )

"""What the parties of a protocol must be able to do, found out before any round is played.

Those that come with hpcfl are tested; one of a user's own is told which method it lacks, and how
that is called, instead of failing in the middle of a round.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.promises import Promise
from hpcfl.comm.phases import Pattern, Role, Step, call
from hpcfl.crypto.keys import system_secrets
from hpcfl.errors import UsageError
from hpcfl.system.plugins import blamed

# Of a device besides its steps', as validation calls it.
_CONTRIBUTION = ("contribution", "vector")


def rehearse(protocol: AggregationProtocol, *, reduce: bool = False, learns: bool = False) -> None:
    """Refuse a protocol of a user's own whose parties cannot play its steps.

    Parameters
    ----------
    protocol : AggregationProtocol
        Parties of one that comes with hpcfl are not made.
    reduce : bool
        Whether uploads are to be summed on their way.
    learns : bool
        Whether devices are to train on the model that they receive.

    Raises
    ------
    UsageError
        If a method is missing, or does not take what it is called with; the same on every rank.
    """
    if protocol.name not in PROTOCOLS:
        with blamed(f"before the first round of the protocol {protocol.name!r}"):
            _rehearse(protocol, reduce, learns)


def _rehearse(protocol: AggregationProtocol, reduce: bool, learns: bool) -> None:
    _check_promises(protocol)
    count = protocol.parameters.devices
    enrolment = protocol.enrolment(count, protocol.helpers)
    if enrolment is not None:
        # The parties of rounds are made of what devices know after it.
        check(protocol.name, enrolment.steps, "device", enrolment.device(0, system_secrets))
        check(protocol.name, enrolment.steps, "server", enrolment.server())
        return
    model = np.zeros(protocol.parameters.dim, np.float32)
    device = _made(protocol, "device", 0, 0, system_secrets)
    server = _made(protocol, "server", 0, model, system_secrets)
    check_round(protocol, device, server, reduce=reduce)
    if learns:
        _check_model(protocol, device, server)


def check_round(
    protocol: AggregationProtocol, device: Any | None, server: Any | None, *, reduce: bool = False
) -> None:
    """Refuse the parties of a round, as far as they are there; see `rehearse`."""
    if device is not None:
        check(protocol.name, protocol.steps, "device", device)
        if not hasattr(device, "contributions"):
            _check_method(protocol.name, "device", device, *_CONTRIBUTION)
    if server is not None:
        check(protocol.name, protocol.steps, "server", server, reduce=reduce)


def check(
    name: str, steps: tuple[Step, ...], side: str, party: Any, *, reduce: bool = False
) -> None:
    """Refuse a party, by UsageError, that lacks a method for one of the steps."""
    for step in steps:
        for owner, method, *arguments in _methods(step, reduce):
            if owner == side:
                _check_method(name, side, party, method, *arguments)


def _methods(step: Step, reduce: bool) -> Iterator[tuple[str, ...]]:
    """Yield whose method plays a step, how it is called, and what it takes."""
    if step.send is None or step.receive is None:
        return
    send, receive = step.send.__name__, step.receive.__name__
    other = "helper" if step.role is Role.HELPER else "device"
    vector = ("vector",) if step.upload else ()
    if step.wants is not None:
        yield "server", step.wants.__name__
    if step.pattern is Pattern.BROADCAST:
        yield "server", send
        yield other, receive, "payload"
    elif step.pattern is Pattern.SCATTER:
        yield "server", send, "id"
        yield other, receive, "payload"
    elif step.pattern is Pattern.GATHER:
        yield other, send, *vector
        if step.upload and reduce:
            if step.receive_sum is None:
                raise UsageError("--upload reduce needs an upload step that names a receive_sum")
            yield "server", step.receive_sum.__name__, "ids", "total"
        else:
            yield "server", receive, "id", "payload"
    elif step.pattern is Pattern.ROUTE:
        yield "device", send, *vector
        yield "device", receive, "senders", "rows"
        if step.relay is not None:
            yield "server", step.relay.__name__, "ids"


def check_outcome(protocol: AggregationProtocol, server: Any) -> None:
    """Refuse a server that does not say, after a round, what the round has come to."""
    for attribute in ("survivors", "total"):
        if not hasattr(server, attribute):
            raise UsageError(
                f"the server of the protocol {protocol.name!r}, "
                f"{type(server).__name__}, has no {attribute} after the round: see "
                "docs/own-protocol.md"
            )


def _check_model(protocol: AggregationProtocol, device: Any, server: Any) -> None:
    """Refuse a device that has no model once it has received what comes before anything else."""
    step = protocol.steps[0]
    if step.phase == "model":
        receiver = () if step.pattern is Pattern.BROADCAST else (0,)
        call(step.receive, device, call(step.send, server, *receiver))
    elif any(step.phase == "model" for step in protocol.steps):
        return  # what comes before it is not played here: a round finds out
    if getattr(device, "model", None) is None:
        raise without_model(protocol.name, device)


def without_model(name: str, device: Any) -> UsageError:
    """Return the error for a device that is to train and has received no model."""
    return UsageError(
        f"the protocol {name!r} cannot be trained by: before its upload, its device, "
        f"{type(device).__name__}, must receive the model in the phase model, float32 of "
        "shape (d,), or keep it as model, as hpcfl.algorithms.aggregation.base.ModelReceiver does"
    )


def _check_method(name: str, side: str, party: Any, method: str, *arguments: str) -> None:
    called = f"{method}({', '.join(arguments)})"
    whose = f"the {side} of the protocol {name!r}, {type(party).__name__},"
    found = getattr(party, method, None)
    if not callable(found):
        raise UsageError(f"{whose} lacks the method {called}: see docs/own-protocol.md")
    try:
        inspect.signature(found).bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f"{whose} has a method {method} that cannot be called as {called} ({error})"
        ) from None
    except ValueError:  # of something without a signature, which is written in C
        return


def _made(protocol: AggregationProtocol, side: str, *arguments: Any) -> Any:
    """Return a party as the protocol makes it."""
    maker = getattr(protocol, side)
    _, *names = inspect.signature(getattr(AggregationProtocol, side)).parameters
    _check_method(protocol.name, "class", protocol, side, *names)
    made = maker(*arguments)
    if made is None:
        raise UsageError(
            f"the method {side} of the protocol {protocol.name!r} returns None: it must return the "
            f"{side}'s side of a round, see docs/own-protocol.md"
        )
    return made


def _check_promises(protocol: AggregationProtocol) -> None:
    """Refuse a protocol that does not say, as promises, what is hidden."""
    promises = protocol.promises()
    if not isinstance(promises, (list, tuple)) or not all(
        isinstance(one, Promise) for one in promises
    ):
        raise UsageError(
            f"the method promises of the protocol {protocol.name!r} returns "
            f"{promises!r}: it must return a list of "
            "hpcfl.algorithms.aggregation.promises.Promise, such as Certain"
        )

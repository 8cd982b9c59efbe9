"""The modelled seconds of a predicted round of a population, by the event clock of real rounds.

Every step has the bytes of the formula. A device does all of its computing before its upload, a
member of the committee what it does in addition before its last answer, a helper all before its
last answer, and the server after the upload. The committee is a random draw among the devices that
are left when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import of_steps
from hpcfl.comm.phases import Pattern, Role
from hpcfl.rounds.eventclock import EventClock, Times, needed_in
from hpcfl.values import dataclass


@dataclass(frozen=True, eq=False)
class Modelled:
    """The modelled seconds of a round."""

    seconds: NDArray[np.float64]  # of each phase, shape (P,)
    linked: int  # number of the devices that are left after the last route before the upload
    in_sum: int  # number of the devices that upload in time
    failure: str  # why the round cannot end; "" if it can


def play(
    protocol: AggregationProtocol, run: EventClock, cpu: Mapping[str, float], factor: float
) -> Modelled:
    """Let the clock pass a round in which computing takes `factor` times what `cpu` says.

    `cpu` has the CPU seconds of each party, named as the parties of `work.terms` are.
    """
    phases, steps, devices = protocol.phases(), protocol.steps, protocol.parameters.devices
    needed = {Role.DEVICE: protocol.needed_in_sum, **needed_in(protocol)}
    times = Times(run, np.arange(devices), protocol.helpers, len(phases), needed_in(protocol))
    is_device = np.arange(devices + protocol.helpers) < devices
    who = {
        Role.DEVICE: is_device,
        Role.HELPER: ~is_device,
        Role.COMMITTEE: np.zeros_like(is_device),
    }
    there = np.ones_like(is_device)
    there[times.away()] = False

    def each(device: float, member: float, helper: float) -> NDArray[np.float64]:
        own = device + who[Role.COMMITTEE] * np.float64(member)
        return np.where(is_device, own, helper) * there

    # The step before whose answers a role computes.
    works = {step.role: place for place, step in enumerate(steps) if step.pattern is Pattern.GATHER}
    works[Role.DEVICE] = upload = next(place for place, step in enumerate(steps) if step.upload)
    device, helper = cpu["device"], cpu.get("helper", 0.0)
    spends = {Role.DEVICE: device, Role.HELPER: helper}
    spends[Role.COMMITTEE] = max(0.0, cpu.get("member", device) - device)
    drawn, linked, in_sum, failure = False, devices, devices, ""
    for place, (step, moved) in enumerate(zip(steps, of_steps(protocol), strict=True)):
        phase = phases.index(step.phase)
        if Role.COMMITTEE in (step.role, step.to) and not drawn:
            left = np.flatnonzero(there & is_device)
            mixed, drawn = np.random.default_rng(run.population.seed).permutation(left), True
            who[Role.COMMITTEE][mixed[: protocol.members_in_round]] = True
        if step.pattern in (Pattern.GATHER, Pattern.ROUTE) and step.wants is None:
            up = each(moved.up, moved.member_up, moved.helper_up)
            spent = (up > 0) * np.float64(factor * spends[step.role] * (place == works[step.role]))
            there[[*times.answer(phase, step.role, spent, up, up)]] = False
            count, least = int((there & who[step.role]).sum()), needed.get(step.role, 0)
            if count < least and not failure:
                failure = f"{count} {step.role.value} answer in {step.phase}, and it needs {least}"
            linked = count if step.pattern is Pattern.ROUTE and place < upload else linked
            if place == upload:
                times.work(phase, factor * cpu["server"])
                in_sum = count
        if moved.down or moved.member_down or moved.helper_down:
            down = each(moved.down, moved.member_down, moved.helper_down)
            times.receive(phase, np.zeros_like(down), down, down)
    times.end(np.flatnonzero(~there).tolist())
    return Modelled(times.seconds, linked, in_sum, failure)

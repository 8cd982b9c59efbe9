"""The modelled seconds of a predicted round of a population, by the event clock of real rounds.

Every step has the bytes of the formula. A device computes before its upload, a helper and, for what
it does in addition, a member of the committee before its last answer, and the server after the
upload. The committee is a random draw among the devices that are left when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import AggregationProtocol
from hpcfl.algorithms.aggregation.costs import of_steps
from hpcfl.comm.phases import Pattern, Role
from hpcfl.errors import UsageError
from hpcfl.rounds.eventclock import EventClock, Times, needed_in


def play(
    protocol: AggregationProtocol, run: EventClock, cpu: Mapping[str, float], factor: float = 1.0
) -> tuple[list[float], int, int]:
    """Return the seconds of each phase if computing takes `factor` times what `cpu` says.

    `cpu` has the CPU seconds of each party, named as in `work.terms`. Return also how many devices
    are left after the last route before the upload, and after the upload. With the factor 1, raise
    UsageError if too few are left for the round to end.
    """
    phases, steps, devices = protocol.phases(), protocol.steps, protocol.parameters.devices
    needed, linked, in_sum = needed_in(protocol), devices, devices
    times = Times(run, np.arange(devices), protocol.helpers, len(phases), needed)
    is_device = np.arange(devices + protocol.helpers) < devices
    members, there = np.zeros_like(is_device), np.ones_like(is_device)
    there[times.away()] = False
    who = {Role.DEVICE: is_device, Role.HELPER: ~is_device, Role.COMMITTEE: members}

    def each(device: float, member: float, helper: float) -> NDArray[np.float64]:
        return np.where(is_device, device + members * np.float64(member), helper) * there

    # The step before whose answers a role computes.
    works = {step.role: place for place, step in enumerate(steps) if step.pattern is Pattern.GATHER}
    works[Role.DEVICE] = upload = next(place for place, step in enumerate(steps) if step.upload)
    spends = {Role.DEVICE: cpu["device"], Role.HELPER: cpu.get("helper", 0.0)}
    spends[Role.COMMITTEE] = max(0.0, cpu.get("member", 0.0) - cpu["device"])
    for place, (step, moved) in enumerate(zip(steps, of_steps(protocol), strict=True)):
        phase = phases.index(step.phase)
        if Role.COMMITTEE in (step.role, step.to) and not members.any():
            left = np.flatnonzero(there & is_device)
            np.random.default_rng(run.population.seed).shuffle(left)
            members[left[: protocol.members_in_round]] = True
        if step.pattern in (Pattern.GATHER, Pattern.ROUTE) and step.wants is None:
            up = each(moved.up, moved.member_up, moved.helper_up)
            spent = np.float64(factor * spends[step.role] * (place == works[step.role]))
            there[[*times.answer(phase, step.role, spent * (up > 0), up, up)]] = False
            count = int((there & who[step.role]).sum())
            least = {Role.DEVICE: protocol.needed_in_sum, **needed}.get(step.role, 0)
            if count < least and factor == 1:
                raise UsageError(
                    f"a round of {protocol.name} cannot end: {count} {step.role.value} answer in "
                    f"{step.phase}, and it needs {least}"
                )
            linked = count if step.pattern is Pattern.ROUTE and place < upload else linked
            if place == upload:
                times.work(phase, factor * cpu["server"])
                in_sum = count
        if moved.down or moved.member_down or moved.helper_down:
            down = each(moved.down, moved.member_down, moved.helper_down)
            times.receive(phase, np.zeros_like(down), down, down)
    times.end(np.flatnonzero(~there).tolist())
    return times.seconds.tolist(), linked, in_sum

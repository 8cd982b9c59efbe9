"""An artificial calibration: every term of every protocol costs the same."""

from functools import cache

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.benchmark.experiment import Experiment
from hpcfl.costmodel import learning
from hpcfl.costmodel.calibration import ONCE, Calibration
from hpcfl.costmodel.model import terms_of
from hpcfl.errors import UsageError


def kinds(name):
    """Yield the protocol as built for each of its calibration rounds."""
    for options, devices in learning.settings(name):
        try:
            yield Experiment.prepare(options, devices).protocol
        except UsageError:
            continue


@cache
def flat(seconds=1e-8, names=tuple(PROTOCOLS)):
    """Return a calibration in which one unit of each term costs `seconds`."""
    costs = {name: {} for name in names}
    for name, parties in costs.items():
        for protocol in kinds(name):
            for party, terms in terms_of(protocol).items():
                of_party = parties.setdefault(party, {ONCE: seconds})
                of_party |= dict.fromkeys(terms, seconds)
    return Calibration(costs, about={"cpu_model": "no machine"})

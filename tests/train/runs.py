"""Training of softmax regression on the bundled digits, in one process."""

from types import SimpleNamespace

from hpcfl.comm.world import World
from hpcfl.options.training import TrainOptions
from hpcfl.rounds.observer import NOBODY, Results, Together
from hpcfl.training import session


def train(folder, aggregate="fedavg", devices=6, algorithm="fedavg", observer=NOBODY, **options):
    common = {"rounds": 3, "dropout": 0.0, "epochs": 1, "batch_size": 20, "learning_rate": 0.1}
    common |= {"devices": devices, "output": folder}
    asked = TrainOptions(algorithm, aggregate=aggregate, **common | options)
    results = Results()
    trained = session.run(World(None), asked, Together(results, observer))
    assert trained is not None
    path, weights = trained
    return SimpleNamespace(path=path, weights=weights, results=results.results)


def train_privately(folder, algorithm, aggregate="fedavg", devices=8, **options):
    common = {"gamma": 0.0, "epochs": None, "steps": 2, "momentum": 0.0, "sampling": "balanced"}
    common |= {"insecure_seed": 1}
    return train(folder, aggregate, devices, algorithm, **common | options)


def epsilons(trained, by="proven"):
    """Return what every round had cost at its end."""
    return [result.figures[f"epsilon_{by}"] for result in trained.results]


def right(trained):
    return all(result.record.validated for result in trained.results)

"""What the figures of the zCDP paper are compared by: seeds, training data, every learning rate."""

import numpy as np
import pytest

from hpcfl.comm.world import connect
from hpcfl.learning import datasets
from hpcfl.options.training import TrainOptions
from hpcfl.reproduce import ARTEFACTS, zcdp
from hpcfl.reproduce.artefact import Context, Result
from hpcfl.reproduce.verdicts import MATCHES, OPEN, SHOWN, UNDECIDED

# Five seeds, and what is added to them below: seeds differ more than settings do.
SEEDS = np.array([0.50, 0.70, 0.60, 0.80, 0.55])
WOBBLE = np.array([0.001, -0.002, 0.0, 0.002, -0.001])


def around(value):
    return (SEEDS + value + np.roll(WOBBLE, round(10 * value))).tolist()


def verdicts(artefact, settings, found):
    results = [Result(one, found(one)) for one in settings]
    return {line.what: line for line in ARTEFACTS[artefact].lines(results)}


def test_figure_3_is_judged_by_training_losses_of_all_seeds():
    def found(setting):
        noise, steps = setting["sigma"] > 1e-4, setting["tau"] > 1
        late = setting["rounds"] > zcdp.EARLY
        loss = 0.1 * noise + (0.2 if late else -0.2) * steps
        loss -= 0.1 * (setting["rounds"] == zcdp.TURN)
        return {
            "training_loss": around(loss),
            "last_loss": around(0.0),
            "accuracy": [0.8],
            "epsilon_paper": 5.0,
            "epsilon_proven": 9.0,
        }

    small = ARTEFACTS["zcdp/figure-3"].scales["small"].settings
    lines = verdicts("zcdp/figure-3", small, found)

    judged = {what: line.verdict for what, line in lines.items() if line.verdict != SHOWN}
    assert list(judged.values()) == [MATCHES] * 7
    assert (
        "sigma = 1e-05: training loss after 300 rounds of tau 1 and 100 rounds of tau 40" in judged
    )
    (standard,) = [line for what, line in lines.items() if what.startswith("inputs standardised")]
    assert standard.evidence.startswith("not distinguishable")


def test_figure_4_is_judged_and_drawn_by_each_clip_alone():
    """Norms rise with steps late with the lesser clip, and fall with the greater."""

    def found(setting):
        clip, steps = setting.get("clip_norm", 1.0), setting["tau"] > 1
        late = setting["rounds"] > zcdp.EARLY
        up = 0.1 * (setting["sigma"] > 1e-3) + (0.2 if late else -0.2) * steps
        return {
            "gradient_norm": around(1 + up if clip == 0.1 else 0.5 - 0.2 * steps),
            "last_loss": around(0.0),
            "accuracy": [0.8] * setting["rounds"],
            "epsilon_paper": 5.0,
            "epsilon_proven": 9.0,
            "loss": [0.1] * setting["rounds"],
        }

    artefact = ARTEFACTS["zcdp/figure-4"]
    settings = artefact.scales["paper"].settings
    lines = verdicts(artefact.id, settings, found)

    of_greater = {what: one for what, one in lines.items() if what.startswith("clipped to 10")}
    assert [one.verdict for one in of_greater.values()] == [MATCHES] * 4 + [OPEN] * 2
    others = [one for what, one in lines.items() if "norm of" in what and what not in of_greater]
    assert [one.verdict for one in others] == [MATCHES] * 12
    panels = artefact.draw([Result(one, found(one)) for one in settings])
    for accuracy, norms in zip(panels[::2], panels[1::2], strict=True):
        assert accuracy.title == norms.title
        assert len(accuracy.curves["tau = 1"][0]) == 1000
        rounds, drawn = norms.curves["tau = 20"]
        assert rounds == [5, 100]
        assert drawn[1] - drawn[0] == pytest.approx(0.4, abs=0.01)


def test_noise_that_seeds_do_not_show_is_no_match():
    def found(setting):
        return {
            "training_loss": (SEEDS + np.roll(WOBBLE, 3 * (setting["sigma"] > 1e-4))).tolist(),
            "last_loss": around(0.0),
            "accuracy": [0.8],
            "epsilon_paper": 5.0,
            "epsilon_proven": 9.0,
        }

    small = ARTEFACTS["zcdp/figure-3"].scales["small"].settings
    lines = verdicts("zcdp/figure-3", small, found)

    judged = [line.verdict for line in lines.values() if line.verdict != SHOWN]
    assert judged == [UNDECIDED] * 7


def test_figure_6_compares_gradients_also_at_the_learning_rate_that_is_best_for_them():
    def found(setting):
        ours = setting["algorithm"] == "cdp"
        rates = [
            {"rate": 0.1, "gradient_norm": around(0.1 if ours else 0.3)},
            {"rate": 1.0, "gradient_norm": around(0.5 if ours else 0.4)},
        ]
        return {
            "accuracy": [0.8],
            "loss": [0.4],
            "last_accuracy": around(0.2 if ours else 0.1),
            "gradient_norm": rates[1]["gradient_norm"],
            "rates": rates,
            "epsilon_paper": 10.0,
            "epsilon_proven": 10.0,
        }

    lines = verdicts("zcdp/figure-6", ARTEFACTS["zcdp/figure-6"].scales["paper"].settings, found)

    judged = [line for line in lines.values() if line.verdict != SHOWN]
    assert [line.verdict for line in judged] == [MATCHES, OPEN, MATCHES]
    assert "next line" in judged[1].why


def test_loss_and_gradient_on_training_data_are_those_of_a_softmax_regression(tmp_path):
    pytest.importorskip("torch")
    from hpcfl.reproduce.seeds import on_training_data, over_seeds
    from hpcfl.training import session

    given = {"algorithm": "fedavg", "rounds": 1, "dataset": "digits", "model": "softmax"}
    asked = TrainOptions(seed=1, dropout=0.0, **given)
    trained = session.run(connect(), asked, 4, tmp_path)
    loss, norm = on_training_data(trained, asked)

    data = datasets.load("digits")
    x = data.train_inputs.reshape(len(data.train_inputs), -1).astype(np.float64)
    logits = x @ trained.weights.reshape(data.classes, -1).T.astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chosen = shares[np.arange(len(x)), data.train_labels]
    gradient = (shares - np.eye(data.classes)[data.train_labels]).T @ x / len(x)
    assert loss == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
    assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-4)

    found = over_seeds(Context(connect(), None), 4, range(2), in_training=True, **given)

    assert found["training_loss"][1] == pytest.approx(loss, rel=1e-5)
    assert found["gradient_norm"][1] == pytest.approx(norm, rel=1e-5)
    assert found["training_loss"][0] != found["training_loss"][1]


def test_every_learning_rate_is_kept_and_the_best_by_accuracy_is_taken(monkeypatch):
    def at_rate(setting, rate, context):
        return {
            "accuracy": [rate],
            "last_accuracy": [rate],
            "last_loss": [1.0],
            "training_loss": [-rate],
            "gradient_norm": [2.0],
        }

    monkeypatch.setattr(zcdp, "_at_rate", at_rate)

    found = zcdp._train({"rates": [0.3, 0.9, 0.6]}, Context(connect(), None))

    assert (found["rate"], found["training_loss"]) == (0.9, [-0.9])
    assert [one["training_loss"] for one in found["rates"]] == [[-0.3], [-0.9], [-0.6]]

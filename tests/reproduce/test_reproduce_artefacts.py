import json
from pathlib import Path

import pytest
from commandline import refusal

from hpcfl.comm.world import connect
from hpcfl.errors import UsageError
from hpcfl.reproduce import ARTEFACTS, PAPERS, STUDY, queries, select
from hpcfl.reproduce.artefact import (
    DIFFERS,
    MATCHES,
    SHOWN,
    Artefact,
    Context,
    Result,
    Scale,
    key,
    says,
    within,
)
from hpcfl.reproduce.document import tally, verdict, write
from hpcfl.reproduce.store import Store
from hpcfl.reproduce.verdicts import OPEN, UNDECIDED, Line

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "results" / "reproduction"


def test_all_tables_and_figures_with_results_are_there():
    expected = {
        *(f"sparse-secagg/figure-{number}" for number in range(2, 7)),
        "sparse-secagg/table-1",
        *(f"zcdp/figure-{number}" for number in range(3, 9)),
        "locks/figure-1",
        "locks/multipliers",
        "queries/table-1",
        *(f"queries/figure-{number}" for number in range(1, 9)),
    }

    assert {id for id, one in ARTEFACTS.items() if one.group != STUDY} == expected
    assert {one.group for one in ARTEFACTS.values()} == {*PAPERS, STUDY}


@pytest.mark.parametrize("paper", [*PAPERS, STUDY])
def test_equal_settings_of_a_paper_are_run_in_the_same_way(paper):
    runs = {}
    for artefact in ARTEFACTS.values():
        if not artefact.id.startswith(f"{paper}/"):
            continue
        for scale in artefact.scales.values():
            keys = [key(setting) for setting in scale.settings]
            assert len(set(keys)) == len(keys)
            for one in keys:
                assert runs.setdefault(one, artefact.run) is artefact.run


@pytest.mark.parametrize(
    ("names", "count"),
    [(("zcdp",), 6), (("zcdp/figure-3",), 1), (("zcdp", "zcdp/figure-3", "locks"), 8)],
)
def test_a_paper_stands_for_all_of_its_artefacts(names, count):
    assert len(select(names)) == count


def test_an_unknown_name_is_refused():
    with pytest.raises(UsageError, match="hpcfl reproduce --list"):
        select(("nothing/like-it",))


def test_the_scale_is_the_papers_where_time_allows():
    both = {"paper": Scale("", [], 100), "small": Scale("", [], 10)}

    chosen = [Artefact("a/b", "", both).scale(minutes) for minutes in (200, 50, 1)]
    assert chosen == ["paper", "small", "small"]
    assert Artefact("a/b", "", {"paper": both["paper"]}).scale(1) == "paper"


def test_a_number_matches_within_its_tolerance_only():
    assert within("x", 100, 102.9, 0.03, "MB", "why").verdict == MATCHES
    assert within("x", 100, 97.1, 0.03, "MB", "why").verdict == MATCHES
    far = within("x", 100, 103.1, 0.03, "MB", "why")
    assert (far.verdict, far.why) == (DIFFERS, "why")
    assert verdict(far) == "differs: why"
    assert says("x", "up", "down", False, "gravity").verdict == DIFFERS
    assert says("x", "", "down", False, "gravity").verdict == SHOWN


def test_a_tally_counts_every_verdict_but_what_is_only_shown():
    verdicts = (MATCHES, MATCHES, DIFFERS, UNDECIDED, OPEN, SHOWN)
    lines = [Line("x", "up", "down", verdict) for verdict in verdicts]

    assert tally(lines) == "2 of 5 match, 1 differ, 1 not distinguishable, 1 open"
    assert tally(lines[:2]) == "2 of 2 match"
    assert tally(lines[-1:]) == "no verdict"


def test_table_1_of_queries_comes_out_whole():
    artefact = ARTEFACTS["queries/table-1"]
    context = Context(connect(), None)
    settings = artefact.scales["paper"].settings
    lines = artefact.lines([Result(one, artefact.run(one, context)) for one in settings])

    assert len(lines) == 24
    assert {line.verdict for line in lines} == {MATCHES}
    # A wrong entry would be seen.
    wrong = artefact.lines([Result(settings[0], {"entries": [5, 2, 1, 23]})])
    assert [line.verdict for line in wrong] == [MATCHES] * 3 + [DIFFERS]


def test_bytes_of_table_1_are_those_of_real_rounds():
    artefact = ARTEFACTS["sparse-secagg/table-1"]
    context = Context(connect(), None)
    chosen = [one for one in artefact.scales["paper"].settings if one["devices"] == 25]
    secagg, sparse, changed = (artefact.run({**one, "rounds": 1}, context) for one in chosen)

    assert secagg["largest_bytes"] == 4 * 165_000 + 16
    assert sparse["mean_bytes"] == pytest.approx(83_585, rel=0.01)
    # With alpha / N for a pair instead of alpha / (N - 1).
    assert changed["mean_bytes"] == pytest.approx(81_190, rel=0.01)


def test_table_1_is_compared_with_the_largest_upload_as_the_paper_prints_it():
    setting = {"protocol": "sparse", "devices": 50, "dim": 165_000, "rounds": 3}

    def verdict(largest, mean):
        found = {"largest_bytes": largest, "mean_bytes": mean}
        (line,) = ARTEFACTS["sparse-secagg/table-1"].lines([Result(setting, found)])
        assert f"(mean {mean / 1e6:.4f})" in line.ours
        return line.verdict

    # 0.082 MB are printed.
    assert verdict(84_000, 70_000) == MATCHES
    assert verdict(86_000, 82_000) == DIFFERS


def test_the_seeds_decide_what_figure_1_of_queries_says():
    def result(queries_, losses):
        setting = {"mechanism": "laplace", "epsilon": 1.0, "T": queries_, "b": 1}
        return Result(setting, {"last_loss": losses})

    optimum = result(22, [1.0, 1.1, 0.9, 1.0, 1.2])
    better, worse = [0.5, 0.61, 0.4, 0.52, 0.69], [1.5, 1.61, 1.4, 1.52, 1.69]
    lines = ARTEFACTS["queries/figure-1"].lines
    wins = lines([optimum, result(10, worse), result(500, [None, *worse[1:]])])
    loses = lines([optimum, result(10, better), result(500, worse)])
    near = lines([optimum, result(10, [1.01, 1.09, 0.91, 0.99, 1.2]), result(500, worse)])

    # Five signs alone, where a loss is not finite, tell nothing.
    assert [line.verdict for line in wins] == [UNDECIDED, UNDECIDED]
    assert [line.verdict for line in loses] == [DIFFERS, MATCHES]
    assert loses[0].evidence.startswith("T = 10, b = 1: -0.496")
    assert [line.verdict for line in near] == [UNDECIDED, MATCHES]


def write_femnist(folder):
    """Write a FEMNIST of twelve writers in LEAF's format."""
    for part in ("train", "test"):
        users = [f"f{number:04}_{number}" for number in range(12)]
        samples = {
            user: {"x": [[0.5] * 784, [0.9] * 784], "y": [number % 62, 7]}
            for number, user in enumerate(users)
        }
        path = folder / "femnist" / part / "all_data_0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"users": users, "num_samples": [2] * 12, "user_data": samples}))


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_femnist_is_trained_on_where_it_is_there(tmp_path, monkeypatch, mechanism):
    pytest.importorskip("torch")
    write_femnist(tmp_path)
    monkeypatch.setattr(queries, "SEEDS", range(2))
    artefact = ARTEFACTS["queries/figure-2"]
    like = next(s for s in artefact.scales["paper"].settings if s["mechanism"] == mechanism)

    found = artefact.run({**like, "T": 2, "b": 5}, Context(connect(), tmp_path))

    assert len(found["accuracy"]) == 2
    assert len(found["last_loss"]) == 2
    assert found["epsilon_proven"] == pytest.approx(like["epsilon"], rel=0.01)


@pytest.mark.parametrize("id", ARTEFACTS)
def test_what_is_kept_can_be_compared_and_drawn(id):
    artefact = ARTEFACTS[id]
    found = Store(KEPT, id.partition("/")[0]).results(artefact)
    if found is None:
        pytest.skip("nothing is kept of it")
    _, results = found

    lines = artefact.lines(results)

    assert lines
    for line in lines:
        assert line.verdict != DIFFERS or line.why, f"{line.what} differs without a reason"
    if artefact.draw is not None:
        for panel in artefact.draw(results):
            assert panel.curves
            for across, up in panel.curves.values():
                assert len(across) == len(up) > 0


@pytest.mark.parametrize("group", [*PAPERS, STUDY])
def test_nothing_is_kept_that_no_artefact_runs(group):
    scales = [scale for artefact in select((group,)) for scale in artefact.scales.values()]
    named = {key(setting) for scale in scales for setting in scale.settings}

    kept = json.loads((KEPT / f"{group}.json").read_text())["results"]

    assert [one["setting"] for one in kept if key(one["setting"]) not in named] == []


@pytest.mark.full
def test_the_document_is_what_is_generated_from_what_is_kept(tmp_path):
    pytest.importorskip("matplotlib")
    write(tmp_path / "reproduction.md", KEPT)

    committed = (ROOT / "docs" / "reproduction.md").read_text()

    assert committed == (tmp_path / "reproduction.md").read_text()
    for picture in (tmp_path / "reproduction").iterdir():
        assert (ROOT / "docs" / "reproduction" / picture.name).exists()


STAND_IN = [f"queries/figure-{number}" for number in (2, 4, 6, 8)]


def made_up(settings):
    """Return results in which the last loss is above that of the setting before."""
    return [
        Result(
            one,
            {
                "loss": [3.0, 1.0 + k],
                "last_loss": [1.0 + k] * 3,
                "accuracy": [0.1, 0.2],
                "last_accuracy": [0.2] * 3,
            },
        )
        for k, one in enumerate(settings)
    ]


@pytest.mark.parametrize("id", STAND_IN)
def test_a_stand_in_is_called_so_everywhere_and_has_no_verdict(id):
    artefact = ARTEFACTS[id]
    scale = artefact.scales["stand-in"]
    results = made_up(scale.settings)
    lines = artefact.lines(results)

    assert {one["dataset"] for one in scale.settings} == {"styled-mnist"}
    assert scale.what.startswith("a stand-in for FEMNIST: MNIST in the styles of")
    assert "it says nothing about the paper" in scale.what
    assert "a stand-in for FEMNIST" in artefact.titled("stand-in")
    assert "stand-in" not in artefact.titled("paper")
    assert lines
    for line in lines:
        assert (line.verdict, line.paper) == (SHOWN, "")
        assert line.what.startswith("stand-in, ")
        # The paper's optimum and words are for its own data.
        if "lowest" in line.what or "very" in line.what:
            assert line.evidence == ""
    for panel in artefact.draw(results):
        assert panel.title.startswith("stand-in: ")
    # FEMNIST itself keeps its verdicts.
    of_paper = artefact.lines(made_up(artefact.scales["paper"].settings))
    assert {line.verdict for line in of_paper} - {SHOWN}


def test_a_stand_in_takes_the_place_of_the_paper_only_where_that_was_not_run(tmp_path):
    artefact = ARTEFACTS["queries/figure-4"]
    store = Store(tmp_path, "queries")
    for result in made_up(artefact.scales["stand-in"].settings):
        store.add(result.setting, result.found, {})
    stand_in = store.results(artefact)
    for result in made_up(artefact.scales["paper"].settings):
        store.add(result.setting, result.found, {})
    paper = store.results(artefact)

    assert stand_in is not None
    assert stand_in[0] == "stand-in"
    assert paper is not None
    assert paper[0] == "paper"


def test_the_stand_in_needs_mnist_and_is_chosen_as_the_paper_takes_days(tmp_path):
    artefact = ARTEFACTS["queries/figure-2"]

    assert artefact.scale(60) == "stand-in"
    assert artefact.needs("stand-in") == ("mnist",)
    assert artefact.needs("paper") == ("femnist",)
    assert "needs the data set mnist" in refusal(
        "reproduce", artefact.id, "--data-dir", tmp_path, "--output", tmp_path
    )
    assert "needs the data set femnist" in refusal(
        *("reproduce", artefact.id, "--scale", "paper"),
        *("--data-dir", tmp_path, "--output", tmp_path),
    )

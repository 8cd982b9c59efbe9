"""Secure aggregation in NVFlare's simulator, with its own workflow and a site that fails."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs hpcfl[nvflare]")

pytestmark = pytest.mark.full
SITES, FAILING, STEPS = 5, "site-2", 10

TRAINER = f"""
import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor

class Trainer(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        site = fl_ctx.get_identity_name()
        if site == "{FAILING}":
            raise RuntimeError("no memory")
        number = int(site.split("-")[1])
        model = from_shareable(shareable).data
        model["weights"] += number * np.arange(6, dtype=np.float32) / 100  # in place
        dxo = DXO(DataKind.WEIGHTS, data=model, meta={{MetaKey.NUM_STEPS_CURRENT_ROUND: number}})
        dxo.set_meta_prop("secret metric", number)
        return dxo.to_shareable()
"""
PERSISTOR = """
import numpy as np
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor

class Persistor(ModelPersistor):
    def load_model(self, fl_ctx):
        return make_model_learnable({"weights": np.zeros(6, np.float32)}, {})

    def save_model(self, model, fl_ctx):
        np.save("FOUND", model["weights"]["weights"])
"""
COMMON = "nvflare.app_common"


def component(path, id="", **args):
    return {"id": id, "path": path, "args": args}


def run(folder, protocol, **options):
    """Run a job of two rounds; return the final model, and the log."""
    app, found = folder / "job" / "app", folder / "found.npy"
    for name in ("config", "custom"):
        (app / name).mkdir(parents=True)
    (app / "custom" / "trainer.py").write_text(TRAINER)
    (app / "custom" / "persistor.py").write_text(PERSISTOR.replace("FOUND", str(found)))
    workflow = component(
        f"{COMMON}.workflows.scatter_and_gather.ScatterAndGather",
        "workflow",
        min_clients=SITES - 1,
        num_rounds=2,
        wait_time_after_min_received=3,
        aggregator_id="aggregator",
        persistor_id="persistor",
        shareable_generator_id="generator",
        train_task_name="train",
        ignore_result_error=True,
    )
    generator = f"{COMMON}.shareablegenerators.full_model_shareable_generator"
    server = {
        "format_version": 2,
        "workflows": [workflow],
        "components": [
            component("persistor.Persistor", "persistor"),
            component(f"{generator}.FullModelShareableGenerator", "generator"),
            component(
                "hpcfl.integrations.nvflare.SecureAggregator",
                "aggregator",
                protocol=protocol,
                most_examples=STEPS,
                **options,
            ),
        ],
    }
    mask = component("hpcfl.integrations.nvflare.SecureFilter", devices=SITES)
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["train"], "executor": component("trainer.Trainer")}],
        "task_result_filters": [{"tasks": ["train"], "filters": [mask]}],
        "components": [],
    }
    for name, config in (("server", server), ("client", client)):
        (app / "config" / f"config_fed_{name}.json").write_text(json.dumps(config))
    meta = {"name": "job", "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}
    (folder / "job" / "meta.json").write_text(json.dumps(meta))
    words = ["-m", "nvflare.cli", "simulator", str(folder / "job"), "-w", str(folder / "work")]
    done = subprocess.run(
        [sys.executable, *words, "-n", str(SITES), "-t", str(SITES)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    log = done.stdout + done.stderr
    assert found.exists(), log[-6000:]
    return np.load(found), log


def test_the_model_is_the_weighted_mean_of_the_sites_that_train(tmp_path):
    model, log = run(tmp_path, "secagg")
    numbers = [n for n in range(1, SITES + 1) if f"site-{n}" != FAILING]
    change = np.average(numbers, weights=numbers) * np.arange(6) / 100
    np.testing.assert_allclose(model, 2 * change, atol=1e-5)
    assert "ends without a sum" not in log


def test_a_round_with_too_few_sites_leaves_the_model(tmp_path):
    model, log = run(tmp_path, "prf")
    assert not model.any()
    assert "the round ends without a sum" in log
    assert "which sent no vector" in log

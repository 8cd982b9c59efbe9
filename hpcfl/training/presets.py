"""The settings that papers train with, as defaults of `hpcfl train`.

Only what a paper (or the code published with it) says is set here; everything else keeps hpcfl's
own default. Papers, and what they leave open:

sparse-secagg-*
    Ergun, Sami and Guler, arXiv:2112.12872, section VII. The layers of the CIFAR-10 model are not
    given. Figure 2 names no model; hpcfl's is the CNN of the other MNIST experiments.
fedsgd-dpc-*
    The queries-and-replies paper (FedSGD-DPC), its step sizes and Laplace noise (which fedavg
    leaves out). The clip of FEMNIST's gradients is not given.
zcdp-*
    Concentrated differentially private federated learning, on Adult. Batch size, learning rate and
    hidden sizes are not given.
locks-mnist
    LOCKS, its uniform sampling of 20 of 100 clients. Model and learning rate are not given.
"""

from __future__ import annotations

from typing import Any

_SPARSE_SECAGG = {
    "alpha": 0.1,
    "dropout": 0.3,
    "scaling": "paper",
    "epochs": 5,
    "batch_size": 28,
    "learning_rate": 0.01,
    "momentum": 0.5,
    "uplink_mbps": 100.0,
    "downlink_mbps": 100.0,
}
_SPARSE_SECAGG_MNIST = _SPARSE_SECAGG | {"dataset": "mnist", "model": "mnist-cnn"}
_FIGURE_2 = {"devices": 30, "dropout": 0.0}
_ZCDP = {
    "dataset": "adult",
    "devices": 16,
    "per_round": 10,
    "sampling": "balanced",
    "dropout": 0.0,
    "gamma": 0.0,
    "momentum": 0.0,
    "delta": 1e-4,
}
_FEDSGD_DPC = {
    "devices": 10,
    "dropout": 0.0,
    "steps": 1,
    "batch_size": 0,
    "learning_rate": 0.05,
    "momentum": 0.0,
    "weight_decay": 1e-4,
    "sampling": "balanced",
    "mechanism": "laplace",
    "rounds": 500,
}

PRESETS: dict[str, dict[str, Any]] = {
    "sparse-secagg-mnist": _SPARSE_SECAGG_MNIST | {"target_accuracy": 0.97},
    "sparse-secagg-mnist-noniid": (
        _SPARSE_SECAGG_MNIST | {"partition": "shards", "target_accuracy": 0.94}
    ),
    "sparse-secagg-cifar10": (
        _SPARSE_SECAGG | {"dataset": "cifar10", "model": "cifar-cnn", "target_accuracy": 0.55}
    ),
    "sparse-secagg-figure-2": _SPARSE_SECAGG_MNIST | _FIGURE_2,
    "sparse-secagg-figure-2-noniid": _SPARSE_SECAGG_MNIST | _FIGURE_2 | {"partition": "shards"},
    "fedsgd-dpc-mnist": (
        _FEDSGD_DPC
        | {"dataset": "mnist", "model": "softmax", "partition": "two-digit"}
        | {"schedule": "sqrt", "clip_norm": 300.0}
    ),
    "fedsgd-dpc-femnist": (
        _FEDSGD_DPC
        | {"dataset": "femnist", "model": "femnist-cnn", "partition": "writer", "decay": 0.9999}
    ),
    "zcdp-adult-lr": _ZCDP | {"model": "adult-lr", "steps": 10, "rounds": 20},
    "zcdp-adult-nn": _ZCDP | {"model": "adult-nn", "steps": 5, "rounds": 50},
    "locks-mnist": {
        "dataset": "mnist",
        "devices": 100,
        "per_round": 20,
        "sampling": "poisson",
        "dropout": 0.0,
        "epochs": 5,
        "rounds": 100,
    },
}

"""The training settings of papers, as defaults of `hpcfl train`.

A preset sets only the values that a paper or its published code states; all others keep hpcfl's
defaults. Papers, and the settings that they leave open:

sparse-secagg-*
    Ergun, Sami and Guler, arXiv:2112.12872, section VII. The layers of the CIFAR-10 model are not
    given.
zcdp-*
    Concentrated differentially private federated learning, on Adult. Batch size, learning rate and
    hidden sizes are not given.
"""

from __future__ import annotations

from typing import Any

_SPARSE_SECAGG = {
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
PRESETS: dict[str, dict[str, Any]] = {
    "sparse-secagg-mnist": _SPARSE_SECAGG_MNIST | {"target_accuracy": 0.97},
    "sparse-secagg-mnist-noniid": (
        _SPARSE_SECAGG_MNIST | {"partition": "shards", "target_accuracy": 0.94}
    ),
    "sparse-secagg-cifar10": (
        _SPARSE_SECAGG | {"dataset": "cifar10", "model": "cifar-cnn", "target_accuracy": 0.55}
    ),
    "zcdp-adult-lr": _ZCDP | {"model": "adult-lr", "steps": 10, "rounds": 20},
    "zcdp-adult-nn": _ZCDP | {"model": "adult-nn", "steps": 5, "rounds": 50},
}

"""CPU time of clipped per-sample gradients, against a loop over the samples: batches of 32.

The loop is the obvious code without this package: a backward pass, a norm and a sum for every
sample. Repeats alternate, so that a slow moment of the machine affects both. Takes about 10 s on
one core.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness import cpu_seconds, figure
from hpcfl.learning import models
from hpcfl.learning.persample import NORMS, ClippedGradients
from hpcfl.learning.training import single_thread

BATCH, REPEATS, CLIP = 32, 31, 1.0
# Input shape and classes of Adult (104 columns) and MNIST.
MODELS = {"adult-nn": ((104,), 2), "2nn": ((1, 28, 28), 10)}


def loop(model: nn.Module, x: torch.Tensor, y: torch.Tensor, order: int) -> torch.Tensor:
    """Return the sum of the clipped gradients, computed sample by sample."""
    parameters = models.trained_parameters(model)
    total = torch.zeros(models.parameter_count(model))
    for sample in range(len(y)):
        loss = cross_entropy(model(x[sample : sample + 1]), y[sample : sample + 1])
        parts = torch.autograd.grad(loss, parameters)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norm = float(torch.linalg.vector_norm(gradient, order))
        total.add_(gradient, alpha=min(1.0, CLIP / norm))
    return total


def ways(name: str, norm: str) -> dict[str, Callable[[], object]]:
    """Return both ways to compute the sum, after a check that they agree."""
    shape, classes = MODELS[name]
    model = models.build(name, shape, classes, seed=0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *shape, generator=generator)
    y = torch.randint(classes, (BATCH,), generator=generator)
    dense = ClippedGradients(model, CLIP, norm)
    expected = loop(model, x, y, NORMS[norm])
    torch.testing.assert_close(dense(x, y)[0], expected, rtol=1e-4, atol=1e-5)
    return {"loop": lambda: loop(model, x, y, NORMS[norm]), "dense stack": lambda: dense(x, y)}


def main() -> None:
    single_thread()
    for name in MODELS:
        for norm in NORMS:
            works = ways(name, norm)
            seconds: dict[str, list[float]] = {way: [] for way in works}
            for _ in range(REPEATS):
                for way, work in works.items():
                    seconds[way].append(cpu_seconds(work))
            middle = {way: statistics.median(times) for way, times in seconds.items()}
            ratios = {
                way: statistics.median(
                    a / b for a, b in zip(seconds[way], seconds["loop"], strict=True)
                )
                for way in works
            }
            figure(
                f"{name}, {norm}: dense stack ({middle['dense stack'] * 1e3:.2f} ms) "
                f"/ loop ({middle['loop'] * 1e3:.2f} ms)",
                ratios["dense stack"],
                0.2,
            )


if __name__ == "__main__":
    main()

"""CPU time of a device's local training, against the same steps in a bare torch loop.

2NN, 600 samples of 1x28x28, batches of 28, 5 epochs, learning rate 0.01, momentum 0.5: a device of
100 on MNIST. The bare loops are what one would write without this package, with torch's own
optimiser as it comes and with its fused kernel, and the Trainer's own arithmetic without the
Trainer around it. The last one shows what the wrapping itself costs. Repeats are interleaved, so
that a slower moment of the machine meets all of them. Takes about 20 s on one core.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from harness import cpu_seconds, figure
from hpcfl.learning import models
from hpcfl.learning.training import Trainer, single_thread
from hpcfl.options.training import LocalOptions

SAMPLES, SHAPE, CLASSES, REPEATS = 600, (1, 28, 28), 10, 41
OPTIONS = LocalOptions(epochs=5, batch_size=28, learning_rate=0.01, momentum=0.5)
EPOCHS = 5


def optimiser_loop(x: torch.Tensor, y: torch.Tensor, fused: bool) -> Callable[[], object]:
    """Return local training with `torch.optim.SGD`."""
    model = models.build("2nn", SHAPE, CLASSES, seed=0)

    def train() -> None:
        optimiser = torch.optim.SGD(
            model.parameters(), OPTIONS.learning_rate, OPTIONS.momentum, fused=fused
        )
        for _ in range(EPOCHS):
            for batch in torch.randperm(SAMPLES).split(OPTIONS.batch_size):
                optimiser.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                optimiser.step()

    return train


def arithmetic_loop(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return the Trainer's arithmetic alone: its vectors, and no options, seeds or updates."""
    trainer = Trainer(models.build("2nn", SHAPE, CLASSES, seed=0), OPTIONS)
    model, weights, velocity = trainer.model, trainer._weights, trainer._velocity

    def train() -> None:
        velocity.zero_()
        for _ in range(EPOCHS):
            for batch in torch.randperm(SAMPLES).split(OPTIONS.batch_size):
                velocity.mul_(OPTIONS.momentum)
                cross_entropy(model(x.index_select(0, batch)), y.index_select(0, batch)).backward()
                weights.add_(velocity, alpha=-OPTIONS.learning_rate)

    return train


def main() -> None:
    single_thread()
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((SAMPLES, *SHAPE), dtype=np.float32)
    labels = rng.integers(CLASSES, size=SAMPLES)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    model = models.build("2nn", SHAPE, CLASSES, seed=0)
    weights = models.get_flat(model)
    trainer = Trainer(model, OPTIONS)
    ours = "Trainer.local_update"
    works = {
        ours: lambda: trainer.local_update(
            weights, inputs, labels, np.random.SeedSequence(1), round_index=0
        ),
        "torch.optim.SGD": optimiser_loop(x, y, fused=False),
        "SGD(fused=True)": optimiser_loop(x, y, fused=True),
        "the same arithmetic": arithmetic_loop(x, y),
    }
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            seconds[name].append(cpu_seconds(work))
    for name in list(works)[1:]:
        ratios = [a / b for a, b in zip(seconds[ours], seconds[name], strict=True)]
        figure(
            f"Trainer ({statistics.median(seconds[ours]) * 1e3:.1f} ms) / loop, "
            f"{name} ({statistics.median(seconds[name]) * 1e3:.1f} ms)",
            statistics.median(ratios),
            1.10,
        )


if __name__ == "__main__":
    main()

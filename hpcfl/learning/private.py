"""Differentially private local training: noisy SGD on clipped per-sample gradients.

The steps follow Abadi et al., 2016, "Deep Learning with Differential Privacy", Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hpcfl.errors import UsageError
from hpcfl.learning.batches import batches, epoch_steps, layers_seed
from hpcfl.learning.persample import ClippedGradients
from hpcfl.learning.training import Trainer
from hpcfl.options.training import LocalOptions
from hpcfl.values import dataclass

Noise = Callable[[int], NDArray[Any]]


@dataclass(frozen=True)
class PrivateOptions:
    """Options that make local training private, in addition to `LocalOptions`."""

    clip: float = 1.0  # of every sample's gradient
    clip_norm: str = "l2"  # one of `persample.NORMS`
    shuffle: str = "fresh"  # one of `batches.SHUFFLES`


class PrivateTrainer(Trainer):
    """Trains one model with differential privacy, for any number of devices and rounds.

    Each of a round's tau steps is theta <- theta - eta (sum / gamma + w). `sum` is the sum of the
    batch's clipped gradients, w is noise, and gamma is the batch size, even where a batch holds
    another number of samples (Poisson batches; devices with less data than gamma). Replacing a
    record changes sum / gamma by at most 2 clip / gamma. An epoch is floor(samples / gamma) steps,
    at least one, and leaves out an incomplete batch. The accounting requires a momentum of 0.

    As with `Trainer`, no state is kept between calls, and the same arguments and noise give the
    same result, bit for bit. The exception is `clipped`, the fraction of gradients clipped in the
    latest `local_update`, NaN without gradients. It comes from the data without noise, so it is for
    diagnosis, not for release.
    """

    def __init__(
        self,
        model: nn.Module,
        options: LocalOptions,
        private: PrivateOptions,
        torch_device: str = "cpu",
    ) -> None:
        if options.momentum != 0:
            raise UsageError(
                f"private training needs the momentum 0, not {options.momentum}: its accounting "
                "assumes plain SGD"
            )
        super().__init__(model, options, torch_device)
        self.private = private
        self.clipped = math.nan
        self._gradients = ClippedGradients(self.model, private.clip, private.clip_norm)

    def local_update(
        self,
        weights: NDArray[np.float32],
        inputs: NDArray[Any],
        labels: NDArray[Any],
        seed: np.random.SeedSequence,
        round_index: int,
        participation: int | None = None,
        noise: Noise | None = None,
    ) -> NDArray[np.float32]:
        """Train from given weights and return what to subtract from them, as `Trainer` does.

        `seed` is the device's seed, the same in all rounds. It fixes the batches, which must stay
        secret for privacy amplification by sampling or shuffling. `participation` is the number of
        earlier rounds of this device, by default all earlier rounds; it selects the batches.
        `noise` returns the noise of one step, shape (d,), given d; None adds no noise. Without
        samples the update is only noise.
        """
        start = self._load(weights)
        x, y = self._tensor(inputs, torch.float32), self._tensor(labels, torch.int64)
        participation = round_index if participation is None else participation
        batch_size = self.options.divisor(len(y))
        rate = self.options.rate(round_index)
        clipped = torch.zeros((), dtype=torch.int64, device=self.device)
        used = 0
        self.model.train()
        with self._reproducible(layers_seed(participation, seed)):
            for batch in batches(
                self.private.shuffle, len(y), batch_size, self.steps(len(y)), participation, seed
            ):
                chosen = torch.from_numpy(batch).to(self.device)
                # `Trainer`'s velocity is unused here, and serves as memory for the gradients.
                gradient, some = self._gradients(
                    x.index_select(0, chosen), y.index_select(0, chosen), out=self._velocity
                )
                clipped += some
                used += len(batch)
                if self.options.weight_decay:
                    self._weights.mul_(1 - rate * self.options.weight_decay)
                self._weights.add_(gradient, alpha=-rate / batch_size)
                if noise is not None:
                    self._weights.add_(self._noise(noise), alpha=-rate)
        self.clipped = int(clipped) / used if used else math.nan
        update = torch.sub(start, self._weights)
        return update.cpu().numpy()

    def steps(self, samples: int) -> int:
        """Return the steps tau of a round on a device with `samples` samples."""
        if self.options.steps is not None:
            return self.options.steps
        assert self.options.epochs is not None
        return self.options.epochs * epoch_steps(samples, self.options.divisor(samples))

    def _noise(self, noise: Noise) -> Any:
        """Return the noise of a step as a tensor."""
        drawn = np.asarray(noise(len(self._weights)), np.float32)
        if drawn.shape != self._weights.shape:
            raise ValueError(f"the noise has shape {drawn.shape}, not {self._weights.shape}")
        return torch.from_numpy(drawn).to(self.device)

"""Training and evaluation of a model on one device's data."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError, UsageError
from hpcfl.learning.models import check_trainable, trained_parameters
from hpcfl.options.training import LocalOptions

try:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy
except ImportError as error:
    raise MissingPackageError("training", "PyTorch", "train") from error


class Trainer:
    """Trains and evaluates one model, for any number of devices and rounds.

    No state is kept between calls: the same arguments give the same result, bit for bit, whatever
    was trained in between. Many devices can therefore share one trainer. (This holds on the same
    kind of machine with one thread; see `single_thread`.)

    The trainer owns the model: it moves it to `torch_device` (from `choose_device`) and lays its
    trained parameters end to end in one vector. The model must pass `models.check_trainable`.
    """

    def __init__(self, model: nn.Module, options: LocalOptions, torch_device: str = "cpu") -> None:
        check_trainable(model)
        self.options = options
        self.model = model.to(torch_device)
        self.device = torch.device(torch_device)
        # Parameters and gradients are views into two vectors. Each part of a step is then a single
        # operation for all layers, and copying a round's weights is one operation.
        parameters = trained_parameters(self.model)
        self._weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._velocity = torch.zeros_like(self._weights)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, values, gradient in zip(
            parameters, self._weights.split(sizes), self._velocity.split(sizes), strict=True
        ):
            parameter.data = values.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def local_update(
        self,
        weights: NDArray[np.float32],
        inputs: NDArray[Any],
        labels: NDArray[Any],
        seed: np.random.SeedSequence,
        round_index: int,
    ) -> NDArray[np.float32]:
        """Train from given weights, shape (d,), and return what to subtract from them.

        Inputs that are not float32 and contiguous are copied. Labels are classes, from 0. Without
        samples the update is zero. The seed fixes the order of the samples and any dropout layers;
        the caller derives one for each device and round. `round_index`, the number of earlier
        rounds, determines the learning rate.
        """
        start = self._load(weights)
        x, y = self._tensor(inputs, torch.float32), self._tensor(labels, torch.int64)
        learning_rate = self.options.rate(round_index)
        rng = np.random.Generator(np.random.PCG64(seed))
        self.model.train()
        self._velocity.zero_()
        with self._reproducible(int(rng.integers(2**63))):
            for batch in itertools.islice(self._batches(len(y), rng), self.options.steps):
                # A batch of all data is copied, too: sums can depend on the memory's alignment,
                # which torch chooses for a copy and the caller for the data.
                self._step(x.index_select(0, batch), y.index_select(0, batch), learning_rate)
        update = torch.sub(start, self._weights)
        return update.cpu().numpy()

    def evaluate(
        self,
        weights: NDArray[np.float32],
        inputs: NDArray[Any],
        labels: NDArray[Any],
        batch: int = 100,
    ) -> tuple[float, float]:
        """Return accuracy and mean cross-entropy loss of given weights; NaN without samples.

        `batch` is the number of samples at a time, which changes the loss only by rounding. On a
        CPU the convolutional models were 1.5 times as fast with 100 as with 1000.
        """
        self._load(weights)
        x, y = self._tensor(inputs, torch.float32), self._tensor(labels, torch.int64)
        if len(y) == 0:
            return math.nan, math.nan
        self.model.eval()
        # Sums stay on the device, so that the host waits for a GPU once, not once per batch.
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for some_x, some_y in zip(x.split(batch), y.split(batch), strict=True):
                logits = self.model(some_x)
                correct += (logits.argmax(dim=1) == some_y).sum()
                loss += cross_entropy(logits, some_y, reduction="sum")
        return float(correct) / len(y), float(loss) / len(y)

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, learning_rate: float) -> None:
        """Take one step of SGD: v <- momentum v + gradient, weights <- weights - rate v."""
        # The velocity is the gradients' memory, to which backward() adds. No separate gradient is
        # stored or set to zero.
        self._velocity.mul_(self.options.momentum)
        if self.options.weight_decay:
            self._velocity.add_(self._weights, alpha=self.options.weight_decay)
        cross_entropy(self.model(inputs), labels).backward()
        self._weights.add_(self._velocity, alpha=-learning_rate)

    def _batches(self, samples: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """Yield the positions of the samples of each step, newly shuffled for each pass."""
        if samples == 0:
            return
        passes = itertools.count() if self.options.epochs is None else range(self.options.epochs)
        for _ in passes:
            order = torch.from_numpy(rng.permutation(samples)).to(self.device)
            yield from order.split(self.options.batch_size or samples)

    def _load(self, weights: NDArray[np.float32]) -> torch.Tensor:
        """Copy weights into the model, and return them as a tensor."""
        if weights.shape != self._weights.shape:
            raise ValueError(f"the weights have shape {weights.shape}, not {self._weights.shape}")
        given = self._tensor(weights, torch.float32)
        self._weights.copy_(given)
        return given

    def _tensor(self, data: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        """Return an array as a tensor on the device, copied only if necessary."""
        with warnings.catch_warnings():
            # torch warns about read-only arrays, but nothing here writes to the data.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
            return torch.from_numpy(np.ascontiguousarray(data)).to(self.device, dtype)

    @contextmanager
    def _reproducible(self, seed: int) -> Iterator[None]:
        """Seed torch for dropout layers, choose deterministic kernels; undo both at the end."""
        generators, gpus = [torch.default_generator], []
        if self.device.type == "cuda":
            gpus = [self.device.index or 0]
            generators.append(torch.cuda.default_generators[gpus[0]])
        with (
            torch.random.fork_rng(devices=gpus),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
        ):
            for generator in generators:
                generator.manual_seed(seed)
            yield


def single_thread() -> None:
    """Limit torch to one thread, because ranks share the cores and sums must keep their order."""
    torch.set_num_threads(1)


def choose_device(wanted: str, local_rank: int) -> str:
    """Return the torch device of a rank: ``"cpu"``, ``"cuda:0"`` and so on.

    The ranks of a node take its GPUs in turn; "auto" takes a GPU if there is one.
    """
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return f"cuda:{local_rank % torch.cuda.device_count()}"
    if wanted == "cuda":
        raise UsageError("PyTorch finds no GPU for the torch device cuda: choose auto or cpu")
    return "cpu"

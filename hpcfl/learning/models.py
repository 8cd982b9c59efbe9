"""The models of the papers and the user's models, each as one flat vector of parameters.

The import does not load torch, which is slow: names and parameter counts are known without it.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError, UsageError, no_such
from hpcfl.options.names import DATASETS, MODELS
from hpcfl.system.plugins import load_object
from hpcfl.values import dataclass

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Architecture:
    """Convolutions, followed by fully connected layers.

    Every convolution keeps the size of the image and is followed by a 2 x 2 max pooling. A ReLU
    follows every layer but the last.
    """

    hidden: tuple[int, ...] = ()  # sizes of the fully connected layers but the last
    bias: bool = True  # of the fully connected layers
    filters: tuple[int, ...] = ()  # of the convolutions
    kernel: int = 0

    def sizes(self, input_shape: tuple[int, ...], classes: int) -> tuple[list[int], list[int]]:
        """Return the channel counts around the convolutions, and the widths around dense layers."""
        if not self.filters:
            return [], [math.prod(input_shape), *self.hidden, classes]
        side = 2 ** len(self.filters)
        if len(input_shape) != 3 or min(input_shape[1:]) < side:
            raise UsageError(
                f"the model needs images (channels, height, width) of at least {side} x {side}, "
                f"not inputs of shape {_written(input_shape)}"
            )
        channels, height, width = input_shape
        flat = self.filters[-1] * (height // side) * (width // side)
        return [channels, *self.filters], [flat, *self.hidden, classes]

    def parameters(self, input_shape: tuple[int, ...], classes: int) -> int:
        """Return the number of parameters."""
        channels, widths = self.sizes(input_shape, classes)
        return sum(b * (a * self.kernel**2 + 1) for a, b in itertools.pairwise(channels)) + sum(
            b * (a + self.bias) for a, b in itertools.pairwise(widths)
        )

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a new model."""
        from torch import nn

        channels, widths = self.sizes(input_shape, classes)
        modules: list[nn.Module] = [_channels_last()] if channels else []
        for before, after in itertools.pairwise(channels):
            # Pooling before ReLU gives the same result, with a quarter of the elements in ReLU.
            modules += [
                nn.Conv2d(before, after, self.kernel, padding=self.kernel // 2),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ]
        modules.append(nn.Flatten())
        for before, after in itertools.pairwise(widths):
            modules += [nn.Linear(before, after, bias=self.bias), nn.ReLU()]
        return nn.Sequential(*modules[:-1])


# FedSGD-DPC's regression on MNIST has 784 x 10 parameters, so no bias. Paper (c) states neither the
# hidden sizes of its three-layer ReLU network nor which layers it counts; 64 and 32 are our choice.
# Paper (d) gives only the size of its CIFAR-10 model, 0.66 MB; the layers are our choice. 2nn and
# mnist-cnn are from McMahan et al., AISTATS 2017, section 3.
ARCHITECTURES = {
    "softmax": Architecture(bias=False),
    "2nn": Architecture((200, 200)),
    "adult-lr": Architecture(),
    "adult-nn": Architecture((64, 32)),
    "mnist-cnn": Architecture((512,), filters=(32, 64), kernel=5),
    "cifar-cnn": Architecture((105,), filters=(32, 64, 64), kernel=3),
    "femnist-cnn": Architecture(filters=(16, 32), kernel=5),
}
NAMES = tuple(ARCHITECTURES)
"""The names that `build` knows."""


def find(name: str) -> Architecture:
    """Return one of `ARCHITECTURES` by name; raise UsageError for an unknown name."""
    if name not in ARCHITECTURES:
        raise no_such("model", name, NAMES, also="or give MODULE:FUNCTION")
    return ARCHITECTURES[name]


@functools.cache
def parameters(model: str) -> int:
    """Return the number d of parameters of a model.

    `model` is one of `NAMES`, which needs no torch, or ``MODULE:FUNCTION``. The function takes the
    shape of a sample and the number of classes, and returns a `torch.nn.Module` or d itself. A
    suffix ``@DATASET`` selects the data set that determines these; the default is the data set that
    the model is for, else digits.
    """
    name, at, data = model.partition("@")
    if at and data not in DATASETS:
        raise no_such("data set", data, DATASETS)
    kind = DATASETS[data or MODELS.get(name, "digits")]
    if ":" not in name:
        return find(name).parameters(kind.shape, kind.classes)
    found = _call_own(name, kind.shape, kind.classes)
    if not isinstance(found, Integral):
        return parameter_count(_check_own(name, found, kind.shape, kind.classes))
    if found < 1:
        raise UsageError(f"{name} must return at least 1 parameter, not {found}")
    return int(found)


def is_linear(name: str) -> bool:
    """Return whether the model is known to be linear in its inputs."""
    return name in ("softmax", "adult-lr")


def require_torch() -> None:
    """Raise MissingPackageError if torch is not installed, without importing it."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError("training", "PyTorch", "train")


def build(name: str, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return a new model with random initial parameters, on the CPU and in training mode.

    `name` is one of `NAMES`, or ``MODULE:FUNCTION`` for a user's function with the parameters
    ``(input_shape, classes)``. It returns a `torch.nn.Module` that maps float32
    ``(samples, *input_shape)`` to logits ``(samples, classes)``. The seed determines the initial
    parameters; the state of torch's generator does not change.
    """
    require_torch()
    import torch

    # Not torch.manual_seed, which would also seed the GPUs' generators permanently.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        if ":" in name:
            own = _call_own(name, input_shape, classes)
            return _check_own(name, own, input_shape, classes)
        return find(name).build(input_shape, classes)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in the order of the flat vector.

    Frozen parameters (``requires_grad`` is false) are left out: every device builds the same ones,
    so they need not be sent. A parameter shared by several layers occurs once.
    """
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """Return the number d of trained parameters."""
    return sum(parameter.numel() for parameter in trained_parameters(model))


def get_flat(model: nn.Module) -> NDArray[np.float32]:
    """Return a copy of the trained parameters, float32 of shape (d,)."""
    import torch

    parts = [parameter.detach().reshape(-1) for parameter in trained_parameters(model)]
    return torch.cat(parts).cpu().numpy()


def check_trainable(model: nn.Module, name: str = "the model") -> None:
    """Raise UsageError unless a model's state is its trained parameters, all of them float32.

    Averaging the devices' parameters would miss other state, such as the running statistics of
    batch normalisation.
    """
    import torch

    for buffer_name, buffer in model.named_buffers():
        if buffer.is_floating_point() or buffer.is_complex():
            raise UsageError(
                f"{name} has the buffer {buffer_name}, which would not be averaged: "
                "use layers without running statistics, such as GroupNorm instead of BatchNorm"
            )
    parameters = trained_parameters(model)
    if not parameters:
        raise UsageError(f"{name} has no parameters to train")
    for parameter in parameters:
        if parameter.dtype != torch.float32:
            raise UsageError(f"{name} must have float32 parameters, not {parameter.dtype}")


def _channels_last() -> nn.Module:
    """Return a layer that only changes images to the channels-last memory layout.

    The following convolutions keep this layout, in which a CPU trains them 1.3 to 1.7 times as fast
    (measured on batches of 28).
    """
    import torch
    from torch import nn

    class ChannelsLast(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.to(memory_format=torch.channels_last)

    return ChannelsLast()


def _call_own(name: str, input_shape: tuple[int, ...], classes: int) -> Any:
    """Return the result of the user's function."""
    try:
        return load_object(name)(input_shape, classes)
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot load the model {name}: {cause(error)}") from error


def _check_own(name: str, model: Any, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the user's model in training mode; raise UsageError if it cannot be trained.

    The model runs once, which finds shape errors and sets the sizes of lazy layers.
    """
    require_torch()
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{name} must return a torch.nn.Module, not {type(model).__name__}")
    try:
        with torch.no_grad():
            shape = tuple(model.eval()(torch.zeros(2, *input_shape)).shape)
    except Exception as error:
        raise UsageError(
            f"the model {name} fails on inputs of shape {_written(input_shape)}: {cause(error)}"
        ) from error
    if shape != (2, classes):
        raise UsageError(
            f"the model {name} must turn 2 samples into logits of shape (2, {classes}), not {shape}"
        )
    check_trainable(model, f"the model {name}")
    return model.train()


def _written(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def cause(error: BaseException) -> str:
    """Return an error's type and message on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

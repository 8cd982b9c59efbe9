"""The models of the papers, and the user's own, each as one flat vector of parameters.

The module is imported without torch, so that names and defaults are known before the first
(slow) import of it; the functions that build or read a model need it.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError, no_such
from hpcfl.report.formats import counted
from hpcfl.system.plugins import load_object

if TYPE_CHECKING:
    from torch import nn

# Hidden sizes of the fully connected models. A logistic regression is a softmax regression with
# bias: two classes have two outputs. Paper (c) does not print the hidden sizes of its three-layer
# ReLU network, nor which layers it counts; two hidden layers of 64 and 32 are ours.
_DENSE: dict[str, tuple[int, ...]] = {
    "softmax": (),
    "2nn": (200, 200),
    "adult-lr": (),
    "adult-nn": (64, 32),
}
# FedSGD-DPC's regression on MNIST has 784 x 10 parameters, so no bias.
_WITHOUT_BIAS = {"softmax"}

# Kernel, filters of each convolution, hidden sizes of the fully connected part. Paper (d) gives
# only the size of its CIFAR-10 model, 0.66 MB or about 165,000 parameters; the layers are ours.
_CONVOLUTIONAL: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "mnist-cnn": (5, (32, 64), (512,)),
    "cifar-cnn": (3, (32, 64, 64), (105,)),
    "femnist-cnn": (5, (16, 32), ()),
}

NAMES = (*_DENSE, *_CONVOLUTIONAL)
"""The names that `build` knows."""


class Dense(NamedTuple):
    """A fully connected layer; all but the last are followed by a ReLU."""

    inputs: int
    outputs: int
    bias: bool

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias)


class Convolution(NamedTuple):
    """A convolution that keeps the image's size, followed by 2 x 2 max pooling and a ReLU."""

    channels: int
    filters: int
    kernel: int

    @property
    def parameters(self) -> int:
        return self.filters * (self.channels * self.kernel**2 + 1)


def layers(name: str, input_shape: tuple[int, ...], classes: int) -> list[Dense | Convolution]:
    """Return the layers of one of `NAMES`, without torch.

    UsageError if there is no such model, or it does not fit the shape.
    """
    if name in _DENSE:
        return _dense(math.prod(input_shape), _DENSE[name], classes, name not in _WITHOUT_BIAS)
    if name in _CONVOLUTIONAL:
        return _convolutional(name, input_shape, classes)
    raise no_such("model", name, NAMES, also="or give MODULE:FUNCTION")


def is_linear(name: str) -> bool:
    """Return whether the model of that name is known to be linear in the inputs."""
    return _DENSE.get(name) == ()


def require_torch() -> None:
    """Raise a `UsageError` if torch is not installed, without importing it."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "training needs PyTorch, which is not installed: pip install 'hpcfl[train]'"
        )


def build(name: str, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return a new model with random initial parameters.

    Any model takes any shape that fits it: fully connected ones flatten their input, convolutional
    ones need images of a size that every 2 x 2 max pooling can halve.

    =============  ================================================  ======================
    name           layers                                            parameters
    =============  ================================================  ======================
    softmax        one layer without bias                            7,840 (MNIST)
    2nn            200, 200 hidden [1]_                              199,210 (MNIST)
    mnist-cnn      5x5 convolutions 32, 64; 512 hidden [1]_          1,663,370 (MNIST)
    cifar-cnn      3x3 convolutions 32, 64, 64; 105 hidden           165,005 (CIFAR-10)
    femnist-cnn    5x5 convolutions 16, 32 [2]_                      110,526 (FEMNIST)
    adult-lr       one layer with bias                               2 (inputs + 1)
    adult-nn       64, 32 hidden                                     64 inputs + 2,210
    =============  ================================================  ======================

    Every convolution keeps the size of the image and is followed by a max pooling; every hidden
    layer ends in a ReLU. No model has batch normalisation or other state beside its parameters.

    Parameters
    ----------
    name : str
        One of `NAMES`, or ``MODULE:FUNCTION`` for a function of the user's with parameters
        ``(input_shape, classes)`` that returns a `torch.nn.Module`. The module is looked for on
        Python's path and then in the current folder.
    input_shape : tuple of int
        Shape of one sample, for example ``(1, 28, 28)`` or ``(104,)``.
    classes : int
        Number of outputs of the model.
    seed : int
        Fixes the initial parameters. The state of torch's own generator is left as it was.

    Returns
    -------
    torch.nn.Module
        Maps float32 ``(samples, *input_shape)`` to float32 logits ``(samples, classes)``. On the
        CPU, in training mode.

    Raises
    ------
    UsageError
        If there is no such model, it does not fit the shape, or the user's own cannot be trained
        by averaging parameters.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
       Data", AISTATS 2017, section 3.
    .. [2] FedSGD-DPC (the queries-and-replies paper), experiments.
    """
    require_torch()
    with _seeded(seed):
        if ":" in name:
            return _load_own(name, input_shape, classes)
        return _sequential(layers(name, input_shape, classes))


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in the order of the flat vector.

    Frozen ones (``requires_grad`` is false) are not among them: every device builds the same, so
    they need not travel. A parameter shared by several layers is there once.
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


def set_flat(model: nn.Module, vector: NDArray[np.float32]) -> None:
    """Copy a vector, float32 of shape (d,), into the trained parameters."""
    import torch

    count = parameter_count(model)
    if vector.shape != (count,):
        raise ValueError(
            f"the model has {counted(count, 'parameter')}, the vector has shape {vector.shape}"
        )
    parameters = trained_parameters(model)
    # A copy also where the caller's array is read-only, which torch would warn of.
    parts = torch.tensor(vector).split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def check_trainable(model: nn.Module, name: str = "the model") -> None:
    """Refuse a model that is more than its trained parameters, or has none in float32.

    Averaging the devices' parameters would not average all of it, as with the running statistics of
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


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator within the context, and put its old state back at the end."""
    import torch

    # Not torch.manual_seed: it would seed the GPUs' generators as well, and for good.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        yield


def _sequential(layers: list[Dense | Convolution]) -> nn.Module:
    from torch import nn

    modules: list[nn.Module] = []
    if isinstance(layers[0], Convolution):
        modules.append(_channels_last())
    for number, layer in enumerate(layers):
        if isinstance(layer, Convolution):
            # Pooling first: the result is that of ReLU first, with a quarter of the elements.
            modules += [
                nn.Conv2d(layer.channels, layer.filters, layer.kernel, padding=layer.kernel // 2),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ]
            continue
        if not number or isinstance(layers[number - 1], Convolution):
            modules.append(nn.Flatten())
        modules.append(nn.Linear(layer.inputs, layer.outputs, bias=layer.bias))
        if layer is not layers[-1]:
            modules.append(nn.ReLU())
    return nn.Sequential(*modules)


def _dense(
    inputs: int, hidden: tuple[int, ...], classes: int, bias: bool = True
) -> list[Dense | Convolution]:
    """Return a fully connected network on flattened samples."""
    sizes = (inputs, *hidden, classes)
    return [Dense(*pair, bias) for pair in itertools.pairwise(sizes)]


def _convolutional(
    name: str, input_shape: tuple[int, ...], classes: int
) -> list[Dense | Convolution]:
    """Return convolutions, and a fully connected end."""
    kernel, filters, hidden = _CONVOLUTIONAL[name]
    side = 2 ** len(filters)
    if len(input_shape) != 3 or min(input_shape[1:]) < side:
        raise UsageError(
            f"the model {name} needs images (channels, height, width) of at least {side} x {side}, "
            f"not inputs of shape {_written(input_shape)}"
        )
    channels, height, width = input_shape
    found: list[Dense | Convolution] = []
    for outputs in filters:
        found.append(Convolution(channels, outputs, kernel))
        channels, height, width = outputs, height // 2, width // 2
    return found + _dense(channels * height * width, hidden, classes)


def _channels_last() -> nn.Module:
    """Return a layer that only lays out images pixel by pixel, with all channels of one together.

    The convolutions after it keep that layout, in which a CPU trains them 1.3 to 1.7 times
    as fast (measured on batches of 28).
    """
    import torch
    from torch import nn

    class ChannelsLast(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.to(memory_format=torch.channels_last)

    return ChannelsLast()


def _load_own(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model that a function of the user's builds."""
    from torch import nn

    try:
        model = load_object(name)(input_shape, classes)
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot load the model {name}: {cause(error)}") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} must return a torch.nn.Module, not {type(model).__name__}")
    return check_own(name, model, input_shape, classes)


def check_own(name: str, model: nn.Module, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model of the user's in training mode; UsageError if it cannot be trained."""
    _try_out(name, model, input_shape, classes)
    check_trainable(model, f"the model {name}")
    return model.train()


def _try_out(name: str, model: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Run the user's model once: finds what does not fit, and gives lazy layers their sizes."""
    import torch

    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(2, *input_shape))
    except Exception as error:
        raise UsageError(
            f"the model {name} fails on inputs of shape {_written(input_shape)}: {cause(error)}"
        ) from error
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != (2, classes):
        raise UsageError(
            f"the model {name} must turn 2 samples into logits of shape (2, {classes}), not {shape}"
        )


def _written(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def cause(error: BaseException) -> str:
    """Return an error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

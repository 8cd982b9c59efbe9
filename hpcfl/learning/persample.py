"""Sums of per-sample gradients, each clipped to a norm.

A sample's gradient of a dense layer is an outer product of two vectors. Its norm is the product of
theirs, so the gradient is never formed (Goodfellow, 2015, "Efficient per-example gradient
computations"; Li et al., 2022, section 4, call it ghost clipping). A convolution is a dense layer
applied to every patch of an image; the outer products of its patches are added up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import cross_entropy, pad, unfold

from hpcfl.errors import UsageError
from hpcfl.learning.models import check_trainable, trained_parameters

NORMS = {"l1": 1, "l2": 2}
"""The norms to clip to, and their orders."""

# Samples at a time: of models with dense layers only, and with convolutions (patches take memory).
_DENSE_CHUNK, _PATCHES_CHUNK = 8192, 128

# Relative reduction of the clip, which makes up for rounding of the norm.
_ROUNDING = 5e-6

# Elements per block of a norm.
_BLOCK = 2**13


class ClippedGradients:
    """The sum of a batch's per-sample gradients of the cross-entropy, each clipped to a norm.

    A gradient g becomes g min(1, clip / ||g||). The norm, one of `NORMS`, is over all parameters
    together. The clip used is five millionths below `clip`, so that float32 rounding (about a
    millionth) cannot make a gradient longer than `clip`. A gradient without a finite norm counts as
    zero, so no sample adds more than `clip`, whatever its values.

    All trained parameters must belong to dense layers or convolutions without groups, each of which
    the model calls once; otherwise UsageError is raised. The model's parameters are read at every
    call, and not changed.
    """

    def __init__(self, model: nn.Module, clip: float, norm: str = "l2") -> None:
        check_trainable(model)
        self._model = model
        self._clip = clip
        self._order = NORMS[norm]
        self._layers = _layers(model)
        self._sizes = [parameter.numel() for parameter in trained_parameters(model)]
        patches = any(hasattr(layer, "kernel_size") for layer in self._layers)
        self._chunk = _PATCHES_CHUNK if patches else _DENSE_CHUNK

    def __call__(
        self, inputs: torch.Tensor, labels: torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum, shape (d,), and the number of gradients that were clipped or left out.

        That number is not differentially private. The batch may be empty. The sum is in the order
        of `models.trained_parameters`; `out` is contiguous memory for it, which is overwritten.
        """
        size = sum(self._sizes)
        total = torch.zeros(size, device=inputs.device) if out is None else out.zero_()
        clipped = torch.zeros((), dtype=torch.int64, device=inputs.device)
        if len(labels):
            for x, y in zip(inputs.split(self._chunk), labels.split(self._chunk), strict=True):
                clipped += self._add(x, y, total)
        return total, clipped

    def _add(self, inputs: torch.Tensor, labels: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Add the clipped gradients of some samples to `total`, and count the clipped ones."""
        with torch.no_grad():
            values, deltas = self._play(inputs, labels)
            # `factored` has the factors x and delta of a sample's gradients: their outer product
            # for weights, delta for biases. For layers at many positions it has the gradients.
            parts, factored = [], []
            for layer, x, delta in zip(self._layers, values, deltas, strict=True):
                if x.dim() == 2:
                    length = self._norm(x)
                    if layer.bias is not None:
                        ones = torch.ones_like(length)
                        length = self._norm(torch.stack((length, ones), dim=1))
                    parts.append(length * self._norm(delta))
                else:
                    x, delta = _of_positions(layer, x, delta)
                    parts.append(self._norm(x))
                    if layer.bias is not None:
                        parts.append(self._norm(delta))
                factored.append((x, delta))
            factors, finite = self._factors(self._norm(torch.stack(parts, dim=1)))
            all_finite = bool(finite.all())
            views = iter(total.split(self._sizes))
            for layer, given, (x, delta) in zip(self._layers, values, factored, strict=True):
                scaled = delta * factors
                if not all_finite:
                    scaled, x = torch.where(finite, scaled, 0.0), torch.where(finite, x, 0.0)
                if given.dim() == 2:
                    next(views).view_as(layer.weight).addmm_(scaled.T, x)
                else:
                    next(views).addmv_(x.T, factors[:, 0])
                if layer.bias is not None:
                    next(views).add_(scaled.sum(dim=0))
        return (factors < 1).sum()

    def _play(
        self, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return every layer's input, and the gradient of the loss at its output."""
        found: dict[nn.Module, tuple[torch.Tensor, int, Any]] = {}

        def keep(
            layer: nn.Module, given: tuple[torch.Tensor], returned: torch.Tensor
        ) -> torch.Tensor:
            if layer in found:
                raise _unsuited("calls a layer twice")
            # A copy, because a later layer may overwrite this one's output.
            returned = returned.clone()
            found[layer] = given[0], given[0]._version, get_gradient_edge(returned)
            return returned

        hooks = [layer.register_forward_hook(keep) for layer in self._layers]
        try:
            with torch.enable_grad():
                loss = cross_entropy(self._model(inputs), labels, reduction="sum")
        finally:
            for hook in hooks:
                hook.remove()
        if len(found) < len(self._layers):
            raise _unsuited("does not call all of its layers")
        values, versions, edges = zip(*(found[layer] for layer in self._layers), strict=True)
        if any(x._version != version for x, version in zip(values, versions, strict=True)):
            raise _unsuited("overwrites what goes into a layer")
        return [x.detach() for x in values], list(torch.autograd.grad(loss, edges))

    def _norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the norm of every row."""
        # In blocks, so that float32 sums stay accurate.
        parts = [
            torch.linalg.vector_norm(block, self._order, dim=1)
            for block in rows.split(_BLOCK, dim=1)
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.linalg.vector_norm(torch.stack(parts, dim=1), self._order, dim=1)

    def _factors(self, norms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each sample's factor, float32 of shape (batch, 1), and if its norm is finite."""
        finite = torch.isfinite(norms)
        # A norm of 0 gives an infinite quotient, hence the factor 1.
        bound = self._clip * (1 - _ROUNDING)
        factors = torch.where(finite, (bound / norms).clamp(max=1.0), 0.0)
        return factors.to(torch.float32).unsqueeze(1), finite.unsqueeze(1)


def _layers(model: nn.Module) -> list[Any]:
    """Return the layers that have the trained parameters, in the parameters' order."""
    layers: list[Any] = []
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if any(parameter.requires_grad for parameter in own):
            convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1
            if not convolution and not isinstance(layer, nn.Linear):
                raise _unsuited(f"has the layer {type(layer).__name__}")
            layers.append(layer)
    theirs = [id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)]
    if theirs != [id(parameter) for parameter in trained_parameters(model)]:
        raise _unsuited("shares parameters between layers, or trains only some of a layer")
    return layers


def _unsuited(what: str) -> UsageError:
    return UsageError(
        f"the model {what}: to clip the gradient of every sample, all trained parameters must be "
        "in dense layers and in convolutions without groups, each of which the model calls once"
    )


def _of_positions(
    layer: Any, x: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every sample's flat gradients of the weights and of the bias.

    The layer was applied at many positions of a sample, like a convolution at an image's patches.
    """
    if hasattr(layer, "kernel_size"):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        patches = unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
        delta, patches = delta.flatten(2), patches.transpose(1, 2)
    else:
        patches = x.flatten(1, -2)
        delta = delta.flatten(1, -2).transpose(1, 2)
    return (delta @ patches).flatten(1), delta.sum(dim=2)

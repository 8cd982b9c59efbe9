"""Sums of per-sample gradients, each clipped to a norm.

Two ways to the same sum. Stacks of fully connected layers need no per-sample gradient at all: a
sample's gradient of such a layer is the outer product of two vectors, whose norms multiply
(Goodfellow, 2015, "Efficient per-example gradient computations"; Li et al., 2022, section 4, call
it ghost clipping). All other models take `torch.func`, which computes the gradients of some samples
at a time. Imported without torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UsageError
from hpcfl.learning.models import check_trainable, trained_parameters

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.overrides import TorchFunctionMode

NORMS = {"l1": 1, "l2": 2}
"""The norms to clip to, and their orders."""

# The memory that per-sample gradients, or a dense stack's activations, may take at a time.
_CHUNK_BYTES = 2**28

# What the clip is less by, for a norm's rounding.
_ROUNDING = 5e-6

# Elements that a norm adds up one after the other.
_BLOCK = 2**13


class ClippedGradients:
    """The sum of a batch's per-sample gradients of the cross-entropy, each clipped to a norm.

    A gradient g becomes g min(1, clip / ||g||), where the norm, one of `NORMS`, is over all
    parameters together, and the clip is less by five millionths, so that what float32 rounds (about
    a millionth) does not make it longer than `clip`. A gradient without a finite norm counts as
    zero: no sample, whatever its values, adds more than `clip`.

    The model's parameters are read at every call, and not changed.
    """

    def __init__(self, model: nn.Module, clip: float, norm: str = "l2") -> None:
        check_clip(clip, norm)
        check_trainable(model)
        self._model = model
        self._clip = clip
        self._order = NORMS[norm]
        self._sizes = [parameter.numel() for parameter in trained_parameters(model)]
        self._stack = _dense_stack(model)
        floats = _activations(self._stack) if self._stack else sum(self._sizes)
        self._chunk = max(1, _CHUNK_BYTES // (4 * floats))

    def __call__(
        self, inputs: torch.Tensor, labels: torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum, shape (d,), and how many gradients were clipped or left out.

        That number is not private. The batch may be empty. The sum is in the order of
        `models.trained_parameters`; `out` is memory for it, contiguous, and what it held is lost.
        """
        import torch

        size = sum(self._sizes)
        total = torch.zeros(size, device=inputs.device) if out is None else out.zero_()
        clipped = torch.zeros((), dtype=torch.int64, device=inputs.device)
        if len(labels) == 0:
            return total, clipped
        add = self._add_dense if self._stack else self._add_any
        for some_x, some_y in zip(
            inputs.split(self._chunk), labels.split(self._chunk), strict=True
        ):
            clipped += add(some_x, some_y, total)
        return total, clipped

    def _add_dense(
        self, inputs: torch.Tensor, labels: torch.Tensor, total: torch.Tensor
    ) -> torch.Tensor:
        """Add the clipped gradients of a dense stack to `total`, and count the clipped ones."""
        import torch
        from torch import nn
        from torch.nn.functional import cross_entropy

        layers, before, after = [], [], []
        values = inputs
        for layer in self._stack:
            if isinstance(layer, nn.Linear):
                layers.append(layer)
                before.append(values)
                values = layer(values)
                after.append(values)
            else:
                values = layer(values)
        deltas = torch.autograd.grad(cross_entropy(values, labels, reduction="sum"), after)
        with torch.no_grad():
            # A layer's gradient of one sample is delta (x) (values before, 1 for the bias).
            parts = []
            for layer, x, delta in zip(layers, before, deltas, strict=True):
                length = self._norm(x)
                if layer.bias is not None:
                    length = self._norm(torch.stack((length, torch.ones_like(length)), dim=1))
                parts.append(length * self._norm(delta))
            factors, finite = self._factors(self._norm(torch.stack(parts, dim=1)))
            all_finite = bool(finite.all())
            views = iter(total.split(self._sizes))
            for layer, x, delta in zip(layers, before, deltas, strict=True):
                scaled = delta * factors
                if not all_finite:
                    scaled, x = torch.where(finite, scaled, 0.0), torch.where(finite, x, 0.0)
                next(views).view_as(layer.weight).addmm_(scaled.T, x)
                if layer.bias is not None:
                    next(views).add_(scaled.sum(dim=0))
        return (factors < 1).sum()

    def _add_any(
        self, inputs: torch.Tensor, labels: torch.Tensor, total: torch.Tensor
    ) -> torch.Tensor:
        """Add the clipped gradients of any model to `total`, and count the clipped ones."""
        import torch
        from torch.func import functional_call, grad, vmap
        from torch.nn.functional import cross_entropy

        def loss(
            parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            with _any_layout():
                logits = functional_call(self._model, parameters, (x.unsqueeze(0),))
            return cross_entropy(logits, y.unsqueeze(0))

        trained = {
            name: parameter.detach()
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        per_sample = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        gradients = [
            g.reshape(len(labels), -1) for g in per_sample(trained, inputs, labels).values()
        ]
        parts = [self._norm(gradient) for gradient in gradients]
        factors, finite = self._factors(self._norm(torch.stack(parts, dim=1)))
        for view, gradient in zip(total.split(self._sizes), gradients, strict=True):
            gradient[~finite[:, 0]] = 0.0
            view.addmv_(gradient.T, factors[:, 0])
        return (factors < 1).sum()

    def _norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the norm of every row."""
        import torch

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
        import torch

        finite = torch.isfinite(norms)
        # Where the norm is 0, the quotient is infinite and the factor 1.
        bound = self._clip * (1 - _ROUNDING)
        factors = torch.where(finite, (bound / norms).clamp(max=1.0), 0.0)
        return factors.to(torch.float32).unsqueeze(1), finite.unsqueeze(1)


def _any_layout() -> TorchFunctionMode:
    """Return a context in which images are laid out as always, which vmap needs.

    A layer that only asks for channels last changes no value.
    """
    from torch import contiguous_format
    from torch.overrides import TorchFunctionMode

    class AnyLayout(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if "memory_format" in kwargs:
                kwargs["memory_format"] = contiguous_format
            return func(*args, **kwargs)

    return AnyLayout()


def check_clip(clip: float, norm: str) -> None:
    """Raise a `UsageError` if a clip or the name of its norm cannot be meant."""
    if not 0 < clip < math.inf:
        raise UsageError(f"the clip of the gradients must be above 0 and finite, not {clip}")
    if norm not in NORMS:
        raise UsageError(f"gradients are clipped to the norm {' or '.join(NORMS)}, not {norm!r}")


def _dense_stack(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a flattening and then distinct, all trained, dense layers; else none."""
    from torch import nn

    if type(model) is not nn.Sequential or len(model) == 0:
        return []
    first, *others = model
    if type(first) is not nn.Flatten:
        return []
    parameters = [parameter for layer in others for parameter in layer.parameters()]
    if (
        all(type(layer) in (nn.Linear, nn.ReLU) for layer in others)
        and all(parameter.requires_grad for parameter in parameters)
        # A weight that two layers share has the sum of two outer products as its gradient.
        and len({id(parameter) for parameter in parameters}) == len(parameters)
    ):
        return list(model)
    return []


def _activations(stack: list[nn.Module]) -> int:
    """Return the floats that a dense stack and its gradients need for a sample, about."""
    from torch import nn

    return sum(
        3 * (layer.in_features + layer.out_features)
        for layer in stack
        if isinstance(layer, nn.Linear)
    )

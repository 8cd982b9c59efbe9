"""An example of your own model: a small convolutional network with dropout.

Run it from this folder:

    hpcfl train fedavg --devices 10 --model own_model:network
"""

from torch import nn


def network(input_shape, classes):
    """Return a model for inputs of this shape and this number of classes."""
    channels, height, width = input_shape if len(input_shape) == 3 else (1, *input_shape)
    return nn.Sequential(
        nn.Unflatten(1, (channels, height)) if len(input_shape) == 2 else nn.Identity(),
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * (height // 2) * (width // 2), classes),
    )

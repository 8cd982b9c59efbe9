"""A few random images for tests of training, and what a softmax regression learns of them."""

import numpy as np

SHAPE, CLASSES = (1, 8, 8), 5


def data(samples, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((samples, *SHAPE), dtype=np.float32)
    return inputs, rng.integers(CLASSES, size=samples)


def softmax_gradient(weights, inputs, labels):
    """Return gradient and mean cross-entropy of softmax regression, in float64."""
    x = inputs.reshape(len(inputs), -1).astype(np.float64)
    logits = x @ weights.reshape(CLASSES, -1).T
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    loss = -np.log(probabilities[np.arange(len(x)), labels]).mean()
    return ((probabilities - np.eye(CLASSES)[labels]).T @ x / len(x)).reshape(-1), float(loss)

"""A stand-in for FEMNIST where LEAF's data are not at hand: MNIST in the styles of made-up writers.

Nobody wrote these images as they are: every writer is a slant, a thickness of the stroke, a size
and a noise, drawn from a seed, in which some images of MNIST are drawn anew. What FEMNIST has
besides is missing: 62 classes, people's ways to write one letter, writers with few samples and
with many. A result on it says something about training on devices that differ in style, and nothing
about FEMNIST.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError, UsageError
from hpcfl.learning import idx
from hpcfl.learning.base import STYLES, Dataset, Labels, generator_of, scale

Pixels = NDArray[np.uint8]

WRITERS = 100
# Two writers in three are within these of the mean: an upright digit of four fifths of MNIST's
# size, as thick as there, in the noise of a scanner.
SLANT = 0.25  # how far the top is shifted to the right, in heights
THICKNESS = 0.4  # of a pixel that strokes are wider, or narrower, on either side
MEAN_SIZE, SIZE = 0.85, 0.1
LARGEST_NOISE = 0.12  # of an intensity from 0 to 1; writers have any up to that


@dataclass(frozen=True)
class Style:
    """How a writer writes."""

    slant: float  # shift of the top against the bottom, in heights; to the right above 0
    thickness: float  # from -1, a pixel thinner on either side, to 1, a pixel thicker
    size: float  # of MNIST's digits
    noise: float  # standard deviation that is added to intensities from 0 to 1


def styles(writers: int, seed: int) -> list[Style]:
    """Draw writers from a seed; the first ones are the same however many there are.

    Slant, thickness and size are normal, kept within 2.5 deviations; noise is uniform.
    """
    if writers < 1:
        raise UsageError(f"{writers} writers cannot be drawn; there must be one at least")
    found = []
    for number in range(writers):
        generator = generator_of(seed, STYLES, number)
        slant, thickness, size = np.clip(generator.standard_normal(3), -2.5, 2.5).tolist()
        noise = float(generator.uniform(0, LARGEST_NOISE))
        found.append(Style(SLANT * slant, THICKNESS * thickness, MEAN_SIZE + SIZE * size, noise))
    return found


def write(pixels: Pixels, style: Style, generator: np.random.Generator) -> Pixels:
    """Return images as a writer of a style writes them.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (n, height, width)
        Ink from 0 to 255.
    style : Style
        The writer's.
    generator : numpy.random.Generator
        Of the noise.

    Raises
    ------
    UsageError
        If the images have another shape or type, or scipy is not installed.
    """
    try:
        from scipy import ndimage
    except ImportError as error:
        raise MissingPackageError("the data set styled-mnist", "scipy", "train") from error
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise UsageError(
            f"images to be written are {pixels.dtype} of shape {pixels.shape}; they must be uint8 "
            "of shape (n, height, width)"
        )
    ink = pixels.astype(np.float32) / 255
    centre = (np.array(ink.shape) - 1) / 2
    # Where the ink of a pixel comes from: a row above the centre lies further left.
    back = np.array([[1, 0, 0], [0, 1 / style.size, 0], [0, style.slant, 1 / style.size]])
    ink = ndimage.affine_transform(ink, back, centre - back @ centre, order=1)
    if style.thickness:
        widest = ndimage.maximum_filter if style.thickness > 0 else ndimage.minimum_filter
        share = np.float32(abs(style.thickness))
        ink = (1 - share) * ink + share * widest(ink, (1, 3, 3))
    ink += np.float32(style.noise) * generator.standard_normal(ink.shape, np.float32)
    return np.rint(255 * np.clip(ink, 0, 1)).astype(np.uint8)


def assign(count: int, writers: int, seed: int) -> Labels:
    """Return who writes each of `count` samples, int64: all of them about equally many."""
    if writers > count:
        raise UsageError(f"{count} samples are too few for {writers} writers: give each one")
    return generator_of(seed, STYLES).permutation(np.arange(count, dtype=np.int64) % writers)


def rewritten(pixels: Pixels, owners: Labels, known: list[Style], seed: int) -> Pixels:
    """Return images, each as its owner writes; the noise of a writer is drawn from the seed."""
    found = np.empty_like(pixels)
    for number, style in enumerate(known):
        own = np.flatnonzero(owners == number)
        # Beyond all writers, whose numbers their styles are drawn from.
        noise = generator_of(seed, STYLES, len(known) + number)
        found[own] = write(pixels[own], style, noise)
    return found


def read(data_dir: Path) -> Dataset:
    """Read MNIST and return it as 100 writers write it, the same ones for every seed of a run.

    Training and test images are by the same writers, as in LEAF's split by sample; each has 600 of
    the one and 100 of the other. Shape and scale are those of MNIST. Errors are those of MNIST.
    """
    train, train_labels, writers, test, test_labels = _pixels(data_dir)
    return Dataset(
        name="styled-mnist",
        train_inputs=scale(train[:, None], idx.MEAN, idx.DEVIATION),
        train_labels=train_labels,
        test_inputs=scale(test[:, None], idx.MEAN, idx.DEVIATION),
        test_labels=test_labels,
        classes=idx.CLASSES,
        writers=writers,
    )


# Kept for the next training in this process: writing takes some seconds.
@functools.lru_cache(maxsize=1)
def _pixels(data_dir: Path) -> tuple[Pixels, Labels, Labels, Pixels, Labels]:
    seed = 0
    known = styles(WRITERS, seed)
    parts: list[tuple[Pixels, Labels, Labels]] = [*_parts(data_dir, known, seed)]
    (train, train_labels, writers), (test, test_labels, _) = parts
    return train, train_labels, writers, test, test_labels


def _parts(
    data_dir: Path, known: list[Style], seed: int
) -> Iterator[tuple[Pixels, Labels, Labels]]:
    """Yield images, labels and writers of the training and of the test part."""
    for number, part in enumerate(("train", "t10k")):
        pixels, labels = idx.read_part(data_dir, part)
        owners = assign(len(labels), len(known), seed + number)
        yield rewritten(pixels[:, 0], owners, known, seed + number), labels, owners

"""The digit reader: forward and hand-derived backward pass of a two-layer network, as einsum programs, trained on real digits."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

import polyml
from polyml.records import dataclass

__all__ = ["Outcome", "load_digits", "train"]

PREDICT = """
def predict(x: f32["N D"], w1: f32["D H"], b1: f32["H"], w2: f32["H C"], b2: f32["C"]):
    h[n, j] = relu(x[n, d] * w1[d, j] + b1[j])
    z[n, c] = h[n, j] * w2[j, c] + b2[c]
    label[n] = argmax[c](z[n, c])
    return label
"""

STEP = """
def step(x: f32["N D"], t: i64["N"], w1: f32["D H"], b1: f32["H"], w2: f32["H C"], b2: f32["C"], rate: f32):
    h[n, j] = relu(x[n, d] * w1[d, j] + b1[j])
    z[n, c] = h[n, j] * w2[j, c] + b2[c]
    m[n] = max[c](z[n, c])
    e[n, c] = exp(z[n, c] - m[n])
    s[n] = e[n, c]
    loss = sum[n](log(s[n]) + m[n] - z[n, t[n]]) / N
    g[n, c] = (e[n, c] / s[n] - where(t[n] == c, 1, 0)) / N
    q[n, j] = where(h[n, j] > 0, sum[c](g[n, c] * w2[j, c]), 0)
    w2[j, c] -= rate * h[n, j] * g[n, c]
    b2[c] -= rate * g[n, c]
    w1[d, j] -= rate * x[n, d] * q[n, j]
    b1[j] -= rate * q[n, j]
    return loss
"""

TRAINING, HIDDEN, BATCH, EPOCHS, RATE = 1500, 64, 50, 40, 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What training came to. accuracy: share of the test digits read right; seconds: all of it, compile time included."""

    accuracy: float
    tested: int
    seconds: float
    compile_seconds: float


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 1,797 digits: images as f32[1797, 64] in 0..1, labels as i64[1797] (SOURCES.txt names source and licence)."""
    with files("polyml.demo").joinpath("digits.npz").open("rb") as stream, np.load(stream) as data:
        images, labels = data["images"], data["labels"]
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(16), labels.astype(np.int64)


def train(progress: Callable[[str], None], seed: int = 0) -> Outcome:
    """Trains on 1,500 digits in a random order of the given seed, and tests on the rest."""
    start = time.perf_counter()
    step, predict = polyml.einsum(STEP), polyml.einsum(PREDICT)
    images, labels = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    images, labels = images[order], labels[order]
    pixels, classes = images.shape[1], 10
    w1 = rng.normal(0, np.sqrt(2 / pixels), (pixels, HIDDEN)).astype(np.float32)
    w2 = rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, classes)).astype(np.float32)
    b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(classes, np.float32)

    compile_seconds = 0.0
    for epoch in range(EPOCHS):
        shuffled = rng.permutation(TRAINING)
        total = 0.0
        for first in range(0, TRAINING, BATCH):
            chosen = shuffled[first : first + BATCH]
            before = time.perf_counter()
            total += float(step(images[chosen], labels[chosen], w1, b1, w2, b2, RATE))
            if epoch == first == 0:
                compile_seconds = time.perf_counter() - before
        if epoch % 8 == 7:
            progress(
                f"  epoch {epoch + 1:3d}   loss {total / (TRAINING // BATCH):.4f}   {time.perf_counter() - start:5.2f} s"
            )
    guess = predict(images[TRAINING:], w1, b1, w2, b2)
    accuracy = float(np.mean(guess == labels[TRAINING:]))
    return Outcome(accuracy, len(labels) - TRAINING, time.perf_counter() - start, compile_seconds)

"""What a benchmark kernel is, and the sizes of the PolyBench/C 4.2.1 data sets.

sizes.csv: the problem sizes that PolyBench/C 4.2.1 defines (https://sourceforge.net/projects/polybench, its polybench.spec), by data set.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import polyml as pm

__all__ = ["SIZES", "Argument", "Array", "Kernel", "generator", "worst_error"]

Array = NDArray[np.float64]
Argument = Array | float | int

SIZES = ("MINI", "SMALL", "MEDIUM", "LARGE", "EXTRALARGE")


def _table() -> dict[str, dict[str, dict[str, int]]]:
    with (Path(__file__).parent / "sizes.csv").open(newline="") as file:
        return {
            row["kernel"]: {
                size: dict(zip(row["params"].split(), map(int, row[size].split()), strict=True)) for size in SIZES
            }
            for row in csv.DictReader(file)
        }


_SIZES = _table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel in f64.

    text: the einsum program; it returns what `reference` returns. data: its arguments for given sizes, the same ones for a given generator.
    reference: the same in NumPy, on arguments that it may overwrite; where the program's results are larger, their leading boxes.
    """

    name: str
    text: str
    data: Callable[[Mapping[str, int], np.random.Generator], tuple[Argument, ...]]
    reference: Callable[..., tuple[Array, ...]]

    def sizes(self, size: str) -> dict[str, int]:
        """The numbers of the data set `size`, by name."""
        return _SIZES[self.name][size]

    def arguments(self, size: str) -> tuple[Argument, ...]:
        """The arguments of the data set `size`."""
        return self.data(self.sizes(size), generator(self.name))

    def program(self, **options: object) -> pm.Einsum:
        """The program, with these options."""
        made = pm.einsum(self.text, **options)
        assert isinstance(made, pm.Einsum)
        return made


def generator(name: str) -> np.random.Generator:
    """A generator of random numbers of its own for each kernel, the same in every process."""
    return np.random.default_rng([ord(letter) for letter in name])


def worst_error(results: object, expected: tuple[Array, ...]) -> float:
    """The largest error of a program's results, relative to the largest element of the array that it is in."""
    found = results if isinstance(results, tuple) else (results,)
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        error = np.abs(np.asarray(got)[tuple(map(slice, want.shape))] - want)
        worst = max(worst, float(error.max() / max(1.0, float(np.abs(want).max()))))
    return worst if np.isfinite(worst) else np.inf

"""Random sums into windows: one to three of them, with strides, steps and offsets, beside plain indices, products over an index, conditions and loops, under every option that compiles them in another way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.graph.rules.windows import terms_first

Array = npt.NDArray[Any]

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"threads": 1},
    {"threads": 2},
    {"dynamic": True},
    {"precise": True},
    {"scheduler": "isl"},
    {"vectorize": False},
)


@dataclass(frozen=True)
class Windows:
    """`y[.., stride * p + step * r + first, ..] += x[..] * w[..]`; extents of all indices; subscripts of y, x and w."""

    extents: dict[str, int]
    target: tuple[str, ...]
    shape: tuple[int, ...]
    x: tuple[str, ...]
    w: tuple[str, ...]
    condition: str
    repeats: int
    dtype: str

    def text(self) -> str:
        sizes = {"y": " ".join(f"Y{d}" for d in range(len(self.shape)))}
        sizes |= {"x": " ".join(self.x).upper(), "w": " ".join(self.w).upper()}
        head = ", ".join(f'{name}: {self.dtype}["{shape}"]' for name, shape in sizes.items())
        body = [f"y[{', '.join(self.target)}] += x[{', '.join(self.x)}] * w[{', '.join(self.w)}]"]
        for opening in (f"if {self.condition}:" * bool(self.condition), f"for t in range({self.repeats}):"):
            body = [opening, *(f"    {line}" for line in body)] if opening else body
        return "\n    ".join([f"def f({head}):", *body]) + "\n"

    def arguments(self, seed: int) -> tuple[Array, Array, Array]:
        rng, dtype = np.random.default_rng(seed), polyml.dtypes.DTYPES[self.dtype].numpy
        shapes = self.shape, *([self.extents[i] for i in indices] for indices in (self.x, self.w))
        y, x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in shapes)
        return y, x, w

    def apply(self, y: Array, x: Array, w: Array) -> Array:
        left = [i for i in self.extents if i != "k"]
        letters = {index: chr(97 + number) for number, index in enumerate(self.extents)}
        x_letters, w_letters, out = ("".join(letters[i] for i in indices) for indices in (self.x, self.w, left))
        terms = np.einsum(f"{x_letters},{w_letters}->{out}", x, w)
        places = dict(zip(left, np.indices(terms.shape), strict=True))
        inside = eval(self.condition, {}, places) if self.condition else np.ones(terms.shape, bool)
        where = tuple(eval(place, {}, places)[inside] for place in self.target)
        result = y.copy()
        for _ in range(self.repeats):
            np.add.at(result, where, terms[inside])
        return result


def draw(seed: int) -> Windows:
    """Between one and three windows."""
    rng = random.Random(seed)
    extents: dict[str, int] = {}
    target: list[tuple[str, int]] = []
    plain = "bc"[: rng.randint(0, 2)]
    for name in plain:
        extents[name] = rng.choice((1, 2, 3, 5, 17))
        target.append((name, extents[name]))
    count = rng.choice((1, 1, 2, 2, 3))
    for d in range(count):
        stride, step, first = (
            rng.choice((1, 1, 1, 2, 2, 3, 4, 5, 7)),
            rng.choice((1, 1, 1, 1, 2, 3)),
            rng.choice((0, 0, 1)),
        )
        p, r = (
            (rng.choice((1, 2, 4)), rng.choice((1, 2, 3)))
            if count == 3
            else (rng.choice((1, 2, 5, 9, 23)), rng.choice((1, 2, 3, 4, 8, 33)))
        )
        extents |= {f"p{d}": p, f"r{d}": r}
        end = stride * (p - 1) + step * (r - 1) + first + 1 + rng.choice((0, 2))
        target.append((f"{stride}*p{d} + {step}*r{d} + {first}", end))
    rng.shuffle(target)
    deep = rng.choice(((), ("k",)))
    if deep:
        extents["k"] = rng.choice((1, 3, 9, 33, 40))
    x, w = [*plain[:1], *deep], [*plain[1:], *deep]
    x += [f"p{d}" for d in range(count)]
    w += [f"r{d}" for d in range(count)]
    rng.shuffle(x)
    rng.shuffle(w)
    return Windows(
        extents=extents,
        target=tuple(place for place, _ in target),
        shape=tuple(end for _, end in target),
        x=tuple(x),
        w=tuple(w),
        condition=rng.choice(("", "", "", f"p0 < {max(1, extents['p0'] - 1)}", "r0 <= p0", "p0 >= 1")),
        repeats=rng.choice((1, 1, 1, 2)),
        dtype=rng.choice(("f64", "f64", "f32", "i64", "c128")),
    )


def options_for(seed: int, windows: Windows) -> dict[str, object]:
    options = OPTIONS[seed % len(OPTIONS)]
    # Three windows of any size take seconds of dependence analysis.
    return {} if "dynamic" in options and "p2" in windows.extents else options


def seeds(first: int, count: int) -> Iterator[tuple[int, Windows, dict[str, object]]]:
    for seed in range(first, first + count):
        windows = draw(seed)
        yield seed, windows, options_for(seed, windows)


def check(first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, windows, options in seeds(first, count):
        rng = random.Random(seed)
        monkeypatch.setattr(terms_first, "DEPTH", rng.choice((2, 8, 32)))
        monkeypatch.setattr(terms_first, "MOST_BYTES", rng.choice((500, 5000, 1 << 28)))
        y, x, w = windows.arguments(seed)
        expected = windows.apply(y, x, w)
        polyml.einsum(windows.text(), **options)(y, x, w)  # type: ignore[arg-type]
        np.testing.assert_allclose(y, expected, rtol=1e-5, err_msg=f"seed {seed}, {options}\n{windows.text()}")


def test_bounds_by_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """isl writes one of the loops' bounds as `c0 <= 3 ? 0 : c0 - c0 / 2 - 2`, which is a maximum."""
    check(2317, 1, monkeypatch)


def test_random_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    check(0, 9, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(28, 12), *((first, 250) for first in range(1000, 3000, 250))])
def test_random_windows_long(first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(first, count, monkeypatch)

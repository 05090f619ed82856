"""Random products of matrices inside of other programs: in loops over time, for each of a batch, followed or preceded by something, on machines whose caches are so small that they are made in blocks, strips and panels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded

Array = npt.NDArray[Any]

OPTIONS: tuple[dict[str, object], ...] = (
    {"threads": 1},
    {"threads": 2},
    {"dynamic": True},
    {"scheduler": "isl"},
    {"fusion": False},
    {"verify": True},
)
FORMS = {
    "steps": "for t in range(T):\n        c[i, j] = c[i, j] + {x} * {w}",
    "backwards": "for t in range(T - 1, -1, -1):\n        c[i, j] = {x} * {w} - c[i, j]",
    "longest": "for t in range(T):\n        c[i, j] = max(c[i, j], max[k]({x} + {w}))",
    "batch": "c[i, j] += {x} * {w}",
    "rows": "p[t, i, j] = {x} * {w}\n    q[t, i] = max[j](p[t, i, j])\n    c[i, j] += p[t, i, j] - q[t, i]",
    "columns": "p[t, i, j] = {x} * {w}\n    q[t, j] = max[i](p[t, i, j])\n    c[i, j] += p[t, i, j] - q[t, j]",
    "made": "v[t, i, k] = max({x}, 0) + 1\n    c[i, j] += v[t, i, k] * {w}",
}


@dataclass(frozen=True)
class Products:
    """`form`, in terms of x[t, i, k] and w[t, k, j], whose dimensions lie in these orders (those of one without t are the same for all), and c[i, j]."""

    form: str
    x: str
    w: str
    extents: dict[str, int]
    dtype: str

    def text(self) -> str:
        sizes = {"x": self.x, "w": self.w, "c": "ij"}
        names = {"t": "T", "i": "N", "j": "M", "k": "K"}
        head = ", ".join(f'{n}: {self.dtype}["{" ".join(names[i] for i in s)}"]' for n, s in sizes.items())
        x, w = (f"{name}[{', '.join(sizes[name])}]" for name in "xw")
        return f"def f({head}):\n    {FORMS[self.form].format(x=x, w=w)}\n    return c\n"

    def arguments(self, seed: int) -> tuple[Array, Array, Array]:
        rng, dtype = np.random.default_rng(seed), polyml.dtypes.DTYPES[self.dtype].numpy
        x, w, c = (rng.integers(-2, 3, [self.extents[i] for i in s]).astype(dtype) for s in (self.x, self.w, "ij"))
        return x, w, c

    def apply(self, x: Array, w: Array, c: Array) -> Array:
        """The same step by step, in f64 or i64."""
        wide = np.int64 if x.dtype.kind == "i" else np.float64
        result = c.astype(wide)
        steps = range(self.extents["t"])
        for t in reversed(steps) if self.form == "backwards" else steps:
            left, right = self.step(x.astype(wide), self.x, "ik", t), self.step(w.astype(wide), self.w, "kj", t)
            if self.form == "longest":
                for k in range(self.extents["k"]):
                    result = np.maximum(result, left[:, k : k + 1] + right[k])
                continue
            made = (np.maximum(left, 0) + 1 if self.form == "made" else left) @ right
            if self.form in ("rows", "columns"):
                made -= made.max(axis=1 if self.form == "rows" else 0, keepdims=True)
            result = made - result if self.form == "backwards" else result + made
        return result

    def step(self, array: Array, indices: str, order: str, t: int) -> Array:
        at = array.take(t, indices.index("t")) if "t" in indices else array
        left = indices.replace("t", "")
        return at.transpose([left.index(i) for i in order])


def draw(seed: int) -> tuple[Products, dict[str, object]]:
    rng = random.Random(seed)
    form = rng.choice(tuple(FORMS))
    x, w = list("tik"), list("tkj")
    if form != "made" and rng.random() < 0.5:
        rng.choice((x, w)).remove("t")
    if form not in ("steps", "backwards", "longest"):
        # One of both says how many there are.
        w = sorted({*w, "t"})
    rng.shuffle(x)
    rng.shuffle(w)
    sizes = {"i": (17, 70, 97), "j": (48, 97, 128, 129), "k": (33, 129, 260)}
    extents = {"t": rng.choice((1, 2, 3, 5)), **{i: rng.choice((*sizes[i], *sizes[i], 1, 6)) for i in "ijk"}}
    products = Products(form, "".join(x), "".join(w), extents, rng.choice(("f64", "f32", "f32", "i32")))
    name = rng.choice(("x86-64-v3", "x86-64-v4", "host"))
    l1 = rng.choice((2, 8, 8))
    target = Target(
        name if Target(name).runs_here else "host",
        l1_bytes=l1 << 10,
        l2_bytes=8 * l1 << 10,
        cores=2,
        near_l3=rng.random() < 0.5,
    )
    return products, {"target": target, **OPTIONS[seed % len(OPTIONS)]}


def check(first: int, count: int) -> None:
    for seed, products, options in ((s, *draw(s)) for s in range(first, first + count)):
        x, w, c = map(guarded, products.arguments(seed))
        expected = products.apply(x, w, c)
        result = polyml.einsum(products.text(), **options)(x, w, c)  # type: ignore[arg-type]
        np.testing.assert_array_equal(
            result, expected, err_msg=f"seed {seed}, {options}\n{products}\n{products.text()}"
        )


@pytest.mark.parametrize("first", range(64, 84, 5))
def test_random_products(first: int) -> None:
    """Products of each form; seeds 71 and 72 have steps whose panels are of matrices of their own."""
    check(first, 5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_random_products_long(first: int) -> None:
    check(first, 100)

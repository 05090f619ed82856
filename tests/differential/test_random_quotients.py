"""Random programs whose subscripts and conditions have quotients and remainders of indices: rows in parts, windows, products, halves and recurrences must not take them for linear."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.graph.rules.windows import filters, rows
from polyml.target import Target
from polyml.testing import verify

Array = npt.NDArray[Any]

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"threads": 3, "target": Target("host", l1_bytes=1024, l2_bytes=8 * 1024, cores=3)},
    {"fusion": "none"},
    {"fusion": "maximal"},
    {"scheduler": "isl"},
    {"precise": True},
    *([{"target": Target("x86-64-v3")}] if Target("x86-64-v3").runs_here else []),
)
ROOM = 230
"""Elements of each dimension of an operand: no subscript below leaves them."""


class Draw:
    """One program: `text`, and `arguments` for it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.dtype = self.rng.choice(("f32", "f32", "f64", "i32", "u8"))
        self.wide = "i32" if self.dtype == "u8" else self.dtype
        self.rows, self.columns = self.rng.choice((1, 2, 5, 13)), self.rng.choice((1, 7, 16, 17, 33, 65, 100))
        kinds = (
            self.elementwise,
            self.guarded,
            self.window,
            self.padded,
            self.product,
            self.scattered,
            self.recurrence,
        )
        statements = self.rng.choice(kinds)()
        head = f'def f(x: {self.dtype}["40 {ROOM}"], z: {self.dtype}["{ROOM} {ROOM}"]):'
        self.text = "\n    ".join((head, *statements, "return y")) + "\n"
        self.seed = seed

    @property
    def arguments(self) -> tuple[Array, Array]:
        rng, low = np.random.default_rng(self.seed), 0 if self.dtype == "u8" else -3
        kind = polyml.dtypes.DTYPES[self.dtype].numpy
        x, z = (rng.integers(low, 4, shape).astype(kind) for shape in ((40, ROOM), (ROOM, ROOM)))
        return x, z

    def quotient(self, i: str, share: float = 1.0) -> str:
        """Of an index, or in some cases the index itself."""
        forms = (f"{i}//2", f"{i}//3", f"{i}%2", f"{i}%7", f"({i} + 1)//2", f"{i}//16", f"{i}%16", f"({i}*3)//2", f"{i} - {i}%4", f"({i} + 5)%8", f"{i}//5*2", f"{i}//4*4")  # fmt: skip
        return self.rng.choice(forms) if self.rng.random() < share else i

    def condition(self) -> str:
        i, number = self.rng.choice("ij"), self.rng.randint(0, 24)
        return self.rng.choice(
            (
                f"{self.quotient(i)} {self.rng.choice(('<', '<=', '>', '>=', '==', '!='))} {number}",
                f"{number} - {self.quotient(i)} >= 0",
                f"{self.quotient(i)} <= {self.quotient(self.rng.choice('ij'))}",
            )
        )

    def value(self, depth: int) -> str:
        places = f"{self.quotient('i', 0.3)}, {self.quotient('j', 0.3)}"
        if depth == 0:
            return self.rng.choice(("x[i, j]", f"x[{places}]", f"z[{places}]"))
        if self.rng.random() < 0.3:
            return f"max({self.value(depth - 1)}, {self.value(depth - 1)})"
        both = f" {self.rng.choice(('and', 'or'))} ".join(self.condition() for _ in range(self.rng.choice((1, 1, 2))))
        return f"where({both}, {self.value(depth - 1)}, {self.rng.choice((self.value(depth - 1), '0', '1'))})"

    def declared(self, dtype: str, fill: str = "") -> str:
        return f'y: {dtype}["{self.rows} {self.columns}"]{fill}'

    def elementwise(self) -> list[str]:
        return [self.declared(self.dtype), f"y[i, j] = {self.value(self.rng.randint(1, 3))}"]

    def guarded(self) -> list[str]:
        lines = [
            f"if {self.condition()}:",
            f"    y[i, j] += {self.value(1)}",
            "else:",
            f"    y[i, j] = {self.value(0)}",
        ]
        return [self.declared(self.dtype, " = 1"), *lines]

    def window(self) -> list[str]:
        place = f"{self.quotient('j', 0.5)} + r - 1"
        ends = self.rng.choice((f"0 <= {place} < {ROOM}", f"{place} >= 0"))
        term = f"{self.wide}(x[{self.quotient('i', 0.5)}, {place}]) * {self.wide}(z[r, 0])"
        return [self.declared(self.wide), f"y[i, j] = sum[r < {self.rng.choice((1, 2, 3))}, {ends}]({term})"]

    def padded(self) -> list[str]:
        place = f"{self.quotient('i', 0.5)}, {self.quotient('j', 0.5)} + r"
        term = f"{self.wide}(pad(x, ((0, 0), (1, 2)))[{place}]) * {self.wide}(z[r, 0])"
        return [self.declared(self.wide), f"y[i, j] = sum[r < {self.rng.choice((1, 2, 3))}]({term})"]

    def product(self) -> list[str]:
        left, right = ([self.quotient(a, 0.4), self.quotient(b, 0.4)] for a, b in ("ik", "kj"))
        ends = self.rng.choice(("", f", {self.quotient('k')} < 5", ", i//2 <= k"))
        term = f"{self.wide}(x[{', '.join(left)}]) * {self.wide}(z[{', '.join(right)}])"
        return [self.declared(self.wide), f"y[i, j] = sum[k < {self.rng.choice((1, 5, 16, 40))}{ends}]({term})"]

    def scattered(self) -> list[str]:
        target = f"{self.quotient('i')}, j"
        term = f"{self.wide}(x[i, {self.quotient('j')}])"
        return [f'y: {self.wide}["70 {self.columns}"] = 0', f"if i < {self.rows}:", f"    y[{target}] += {term}"]

    def recurrence(self) -> list[str]:
        step = f"y[i, j] = where({self.condition()}, y[i, j - 1] + {self.value(0)}, {self.value(0)})"
        return [
            self.declared(self.dtype),
            "y[i, j] = x[i, j]",
            f"for j in range(1, {self.columns}):",
            f"    {step}",
        ]


def check(seed: int) -> None:
    made, options = Draw(seed), OPTIONS[seed % len(OPTIONS)]
    report = verify(made.text, *made.arguments, **options)
    assert report, f"seed {seed}, {options}: {made.text}{report}"


@pytest.mark.parametrize("first", [212, 333, 490, 625])
@pytest.mark.few(1)
def test_random_quotients(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _all_windows(monkeypatch)
    for seed in range(first, first + 12):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("forced", [False, True])
def test_random_quotients_long(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        _all_windows(monkeypatch)
    for seed in range(1000, 1600):
        check(seed)


def _all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, too, are arranged for lanes and copied."""
    for rules in (filters, rows):
        monkeypatch.setattr(rules, "LEAST_WORK", 1)
    monkeypatch.setattr(filters, "LEAST_GUARDED", 1)
    monkeypatch.setattr(filters, "DEPTH", 1)
    monkeypatch.setattr(rows, "LEAST_ROWS", 1)

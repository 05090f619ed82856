"""Random programs with `int` parameters in subscripts, loops, shapes, pads, conditions and stated ranges, and values for them, right and wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from polyml.dtypes import f32, i64
from polyml.testing.cases import Chooser, sample
from polyml.testing.strategies import Drawn

Values = tuple[int, ...]
INTS = ("a", "b")


@dataclass(frozen=True)
class IntCase:
    """A program, its array arguments, and values of the ints, each a call."""

    text: str
    arrays: tuple[np.ndarray, ...]
    calls: tuple[Values, ...]

    def __repr__(self) -> str:
        return f"IntCase:\n{self.text}shapes {[a.shape for a in self.arrays]}, ints {self.calls}"


class _Program:
    def __init__(self, chooser: Chooser) -> None:
        self.ch = chooser
        self.lines: list[str] = []
        self.made: list[tuple[str, int]] = []
        self.count = 0

    def fresh(self, rank: int) -> str:
        self.count += 1
        self.made.append((f"y{self.count}", rank))
        return f"y{self.count}"

    def line(self, *lines: str) -> None:
        self.lines += lines

    def number(self) -> str:
        """An expression in ints."""
        a = self.ch.pick(INTS)
        return self.ch.pick(
            (
                a,
                f"{a} + 1",
                f"{a} - 1",
                "a + b",
                "a - b",
                "b - a",
                f"2 * {a}",
                f"N - {a}",
                f"M - {a}",
                f"3 - {a}",
                f"({a} + 1) // 2",
            )
        )

    def source(self) -> str:
        """A vector of N numbers, or what an earlier statement made."""
        known = [name for name, rank in self.made if rank == 1]
        return self.ch.pick(known) if known and self.ch.flag(30) else "x"

    def statement(self) -> None:
        kinds = (self.row, self.shift, self.inferred, self.guard, self.sweep, self.recurrence, self.reducer, self.windows, self.shape, self.padded,
                 self.scatter, self.gather, self.triangle, self.nested, self.made_under_an_if, self.in_place, self.argument, self.zero)  # fmt: skip
        self.ch.pick(kinds)()

    def row(self) -> None:
        y = self.fresh(1)
        self.line(f"{y}[j] = w[{self.number()}, j] * 2")

    def shift(self) -> None:
        e = self.number()
        y = self.fresh(1)
        self.line(f'{y}: f32["N"]', f"{y}[i] = where(0 <= i + {e} < N, x[i + {e}], {self.ch.pick(INTS)})")

    def inferred(self) -> None:
        x, e = self.source(), self.number()
        y = self.fresh(1)
        self.line(
            self.ch.pick(
                (
                    f"{y}[i] = {x}[i + {e}] + 1",
                    f"{y}[i] = sum[j](x[i + j + {e}] * v[j])",
                    f"{y}[i] = sum[k](x[k + {e}] * x[i])",
                    f"{y}[i] = x[{e} - i]",
                )
            )
        )

    def guard(self) -> None:
        low, high = self.number(), self.number()
        y = self.fresh(1)
        self.line(f'{y}: f32["N"] = 1', f"if {low} <= i < {high}:", f"    {y}[i] = x[i] + i")
        if self.ch.flag(50):
            self.line("else:", f"    {y}[i] *= 2")

    def loop(self) -> str:
        step = self.ch.pick(("", "", ", 2", ", -1", ", -2"))
        low = self.ch.pick(("0", self.number())) if step else self.ch.pick(("0", "1", self.number()))
        return f"for s in range({low}, {self.number()}{step}):"

    def sweep(self) -> None:
        y = self.fresh(1)
        self.line(f'{y}: f32["M"] = 0', self.loop(), f"    {y}[j] = {y}[j] / 2 + w[s, j]")

    def recurrence(self) -> None:
        y = self.fresh(1)
        fill = self.ch.pick((" = 1", " = 0", ""))
        self.line(
            f'{y}: f32["N"]{fill}',
            self.loop(),
            f"    {y}[s] = {self.ch.pick((f'{y}[s - 1] / 2 + x[s]', 'x[s]', 'x[s] * s', f'{y}[s] + x[0]'))}",
        )

    def reducer(self) -> None:
        y = self.fresh(0)
        kind, e = self.ch.pick(("sum", "max", "min")), self.number()
        self.line(f"{y} = {kind}[k, k {self.ch.pick(('<', '<='))} {e}]({self.source()}[k])")

    def windows(self) -> None:
        e = self.number()
        y = self.fresh(1)
        self.line(f"{y}[i] = {self.ch.pick(('sum', 'max'))}[k, k < {e}](x[i + k])")

    def shape(self) -> None:
        e = self.number().replace(" ", "")
        y = self.fresh(1)
        self.line(f'{y}: f32["{e}"]')
        self.line(
            f"{y}[i] = {self.ch.pick(('where(i < N, x[i], i)', 'exp(f32(i))', 'x[i + 0] * 2', 'sum[j](v[j] * i)'))}"
        )

    def padded(self) -> None:
        first, second = self.number(), self.ch.pick(("0", "1", self.number()))
        y = self.fresh(1)
        self.line(
            self.ch.pick(
                (
                    f"{y}[i] = pad(x, (({first}, {second}),))[i]",
                    f"{y}[i] = sum[j](pad(x, (({first}, {second}),))[i + j] * v[j])",
                )
            )
        )

    def scatter(self) -> None:
        y = self.fresh(1)
        self.line(f'{y}: f32["N"] = 0', f"{y}[{self.ch.pick(('i', '2*i', 'i // 2'))} + {self.number()}] += v[i]")

    def gather(self) -> None:
        y = self.fresh(1)
        self.line(
            f"{y}[i] = x[(ids[i] + {self.number()}) % N]"
            if self.ch.flag(30)
            else f"{y}[j] = x[ids[j + {self.number()}]]"
        )

    def triangle(self) -> None:
        y = self.fresh(1)
        self.line(f"{y}[i] = sum[j, j < i + {self.number()}, j < M](w[i, j])")

    def nested(self) -> None:
        y = self.fresh(1)
        self.line(
            f'{y}: f32["N"] = 0',
            f"for s in range({self.number()}):",
            f"    for r in range(s, {self.number()}):",
            f"        {y}[r] = {y}[r] / 2 + x[s]",
        )

    def made_under_an_if(self) -> None:
        y = self.fresh(1)
        self.line(f"if i < {self.number()}:", f"    {y}[i] = x[i] * 3")

    def in_place(self) -> None:
        e = self.number()
        self.line(f"if i >= {e}:", f"    x[i] = x[i - {e}] + 1")

    def argument(self) -> None:
        y = self.fresh(0)
        self.line(f"{y} = argmax[k, k < {self.number()}](x[k])")

    def zero(self) -> None:
        y = self.fresh(1)
        self.line(f"s{y} = x[{self.number()}]", f"{y}[i] = v[i] * s{y} + {self.number()}")


def int_program(chooser: Chooser, most: int = 3) -> IntCase:
    """A program of up to so many statements, and a dozen calls."""
    program = _Program(chooser)
    for _ in range(1 + chooser.integer(0, most - 1)):
        program.statement()
    n, m = chooser.pick((5, 6, 8)), chooser.pick((4, 3, 7))
    arrays = (sample(f32, (n,), 1), sample(f32, (3,), 2), sample(f32, (n, m), 3), np.arange(n, dtype=i64.numpy) * 3 % n)
    parameters = 'x: f32["N"], v: f32["3"], w: f32["N M"], ids: i64["N"], a: int, b: int'
    body = "".join(f"    {line}\n" for line in program.lines)
    returned = ", ".join(name for name, _ in program.made) or "x"
    calls = tuple((chooser.integer(-2, n + 1), chooser.integer(-2, n + 1)) for _ in range(10))
    return IntCase(f"def program({parameters}):\n{body}    return {returned}\n", arrays, calls)


@st.composite
def int_programs(draw: st.DrawFn) -> IntCase:
    return int_program(Drawn(draw))

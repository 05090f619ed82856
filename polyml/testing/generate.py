"""Random programs: statements of every kind of the language, put together from the expressions of generate_expressions.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from polyml.dtypes import f32, f64, i32, i64
from polyml.einsum_frontend.interpreter.types import Type
from polyml.testing.cases import Case, Chooser
from polyml.testing.generate_accesses import AccessStatements
from polyml.testing.generate_loops import LoopStatements
from polyml.testing.generate_tensors import Value, settle
from polyml.testing.generate_text import LEFT, name_dims

__all__ = ["generate"]


def generate(chooser: Chooser, max_statements: int = 4, *, large: bool = False) -> Case:
    """A program of up to `max_statements` statements, with arguments. large: two sizes are too large for the interpreter."""
    program = _Program(chooser, large)
    for _ in range(1 + chooser.integer(0, max_statements - 1)):
        program.statement()
    return program.case()


class _Program(LoopStatements, AccessStatements):
    """All kinds of statements."""

    def statement(self) -> None:
        kinds: tuple[Callable[[], None], ...] = (
            self.pointwise, self.contraction, self.pointwise, self.zero_dimensional, self.update, self.window,
            self.halves, self.gather, self.scatter, self.recurrence, self.sweeps, self.spread, self.nested_loops, self.paths,
            self.accumulate, self.slices, self.permuted, self.loop_block,
        )  # fmt: skip
        self.chooser.pick(kinds)()

    def zero_dimensional(self) -> None:
        """`s = e`, later used as a number."""
        scope = self.scope
        value = scope.reduced({}, 2)
        name = scope.fresh("s")
        if self.chooser.flag(30) and value.type.dtype.kind != "b":  # a bool added to a number is one
            self.line(f"{name} = 0")
            self.line(f"{name} += {value.text}")
        else:
            self.line(f"{name} = {value.text}")
        self.make(name, (), value)

    def contraction(self) -> None:
        """Implied sums: terms of products, some of whose indices the left side lacks."""
        ch, scope = self.chooser, self.scope
        dtype = ch.pick((f32, f32, f64, i32, i64)) if ch.flag(40) else f32
        first = self._tensor(dtype)
        names = name_dims(first.dims)
        factors, used = [f"{first.name}[{', '.join(names)}]"], dict(zip(names, first.dims, strict=True))
        bound, grain, twice = first.bound, first.grain, set[str]()
        for _ in range(ch.integer(0, 2)):
            own = dict(list(used.items())[-ch.integer(1, 2) :])
            if len(used) < 4 and not ch.flag(30):
                own[f"m{len(used)}"] = scope.size()
            other = scope.parameter(tuple(own.values()), dtype)
            factors.append(f"{other.name}[{', '.join(own)}]")
            twice |= set(own) & set(used)
            used.update(own)
            bound *= other.bound
            grain = None if grain is None or other.grain is None else grain + other.grain
        summed = [i for i in used if ch.flag(60)][:3]
        left = [i for i in used if i not in summed]
        length = math.prod(scope.extent(used[i]) for i in summed)
        scope.rounding += length
        text = " * ".join(factors)
        bound *= max(1, length)
        if ch.flag(20):
            text = ch.pick((f"-{text}", f"2 * {text}", f"{text} / 2"))
            bound, grain = bound * 2, None if grain is None else grain + 1
            if dtype in (i32, i64) and text.endswith("/ 2"):
                text = text.removesuffix(" / 2")
        if left and ch.flag(40):
            bias = scope.parameter((used[left[-1]],), dtype)
            text, bound = f"{text} + {bias.name}[{left[-1]}]", bound + bias.bound
        value = replace(scope.read(first, ""), text=text, bound=bound, grain=grain)
        if set(summed) <= twice and ch.flag(30):
            value = replace(value, text=f"relu({text})")
        if not value.exact and value.bound > 64 and set(summed) <= twice:
            value = settle(value)
        if left and ch.flag(30):
            left = left[::-1]
        dims = tuple(used[i] for i in left)
        name = scope.fresh("t" if left else "s")
        self.line(f"{name}[{', '.join(left)}] = {value.text}" if left else f"{name} = {value.text}")
        self.make(name, dims, value)

    def update(self) -> None:
        """`t[i, j] op= e`, also of parameters, also under an `if`."""
        ch, scope = self.chooser, self.scope
        target = self._target()
        left = dict(zip(LEFT, target.dims, strict=False))
        value = self._fitting(scope.expression(left, 2), target)
        ops = ("+=", "-=", "*=", "/=") if target.dtype.is_float else ("+=", "-=", "*=")
        op = ch.pick(ops)
        if op == "/=":
            divisor = ch.pick(("2", f"(1 + abs({value.text}))"))
            value = Value(divisor, value.type, 4.0, None)
        guarded = ch.flag(40)
        if guarded:
            self.line(f"if {self._guard(left)}:")
            self.indent += 1
        self.line(f"{target.name}[{', '.join(left)}] {op} {value.text}")
        self.indent -= guarded
        bound = target.bound * max(1.0, value.bound) if op == "*=" else target.bound + value.bound
        grain = None
        if target.grain is not None and value.grain is not None and op != "/=":
            grain = target.grain + value.grain if op == "*=" else max(target.grain, value.grain)
        self._overwrite(target, bound, grain, rough=value.coarse)

    def accumulate(self) -> None:
        """`t[i] += x[i, k] * w[k]`: an update with an implied sum, which an `if` may restrict."""
        ch, scope = self.chooser, self.scope
        size, length = scope.size(), scope.size()
        x, w = scope.parameter((size, length), f32), scope.parameter((length,), f32)
        name = self.declare("t", f32, (size,), ch.pick((0, 1)))
        guarded = ch.flag(50)
        if guarded:
            self.line(
                f"if {ch.pick(('k <= i', 'k < 2', 'i + k != 3', f'k < {scope.integer(0, 3)}', 'k % 2 == 0 and i > 0'))}:"
            )
        self.line("    " * guarded + f"{name}[i] {ch.pick(('+=', '-='))} {x.name}[i, k] * {w.name}[k]")
        scope.rounding += scope.extent(length)
        bound = 1 + x.bound * w.bound * max(1, scope.extent(length))
        self._overwrite(self.make(name, (size,), replace(scope.read(x, ""), bound=bound, grain=2)), bound, 2)

    def halves(self) -> None:
        """A declared tensor built by the two branches of an `if`."""
        scope = self.scope
        left = self.left(1, 2)
        first, second = scope.expression(left, 2), scope.expression(left, 2)
        if not (first.type.dtype.is_float and second.type.dtype.is_float):
            first, second = (
                Value(f"f32({v.text})", Type(f32), v.bound, v.grain, rough=v.coarse) for v in (first, second)
            )
        dtype = f64 if f64 in (first.type.dtype, second.type.dtype) else f32
        name = self.declare("t", dtype, tuple(left.values()), None)
        subscripts = ", ".join(left)
        self.line(f"if {self._guard(left)}:")
        self.line(f"    {name}[{subscripts}] = {first.text}")
        self.line("else:")
        self.line(f"    {name}[{subscripts}] = {second.text}")
        grain = None if first.grain is None or second.grain is None else max(first.grain, second.grain)
        bound, rough = max(first.bound, second.bound), first.coarse or second.coarse
        self.make(name, tuple(left.values()), Value("", Type(dtype), bound, grain, rough=rough))

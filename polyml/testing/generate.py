"""Random programs: statements of every kind of the language, put together from the expressions of generate_expressions.py."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from polyml.dtypes import DType, f32, f64, i32, i64
from polyml.einsum_frontend.interpreter_types import Type
from polyml.testing.cases import Case, Chooser
from polyml.testing.generate_expressions import Scope, Tensor, Value, settle

__all__ = ["generate"]

_LEFT = ("i", "j", "l")


def generate(chooser: Chooser, max_statements: int = 4, *, large: bool = False) -> Case:
    """A program of up to `max_statements` statements, with arguments. large: two sizes are too large for the interpreter."""
    program = _Program(chooser, large)
    for _ in range(1 + chooser.integer(0, max_statements - 1)):
        program.statement()
    return program.case()


class _Program:
    def __init__(self, chooser: Chooser, large: bool) -> None:
        self.scope = Scope(chooser, large)
        self.chooser = chooser
        self.lines: list[str] = []
        self.indent = 1
        self.made: list[str] = []

    # -- text ---------------------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def case(self) -> Case:
        scope = self.scope
        candidates = [n for n in dict.fromkeys(self.made) if n in scope.tensors]
        returned = [candidates[-1], *(n for n in candidates[:-1] if self.chooser.flag(40))]
        bound = {d for t in scope.tensors.values() if t.parameter for d in t.dims}
        parameters = []
        for name in scope.order:
            t = scope.tensors.get(name)
            if t is None:
                parameters.append(f"{name}: int")
            else:
                parameters.append(f"{name}: {_annotation(t.dtype, t.dims)}")
        arguments = [scope.arguments[name] for name in scope.order]
        text = "\n".join(self.lines)
        for size, extent in scope.sizes.items():
            if size not in bound and _mentions(text, size):
                parameters.append(f"{size}: int")
                arguments.append(extent)
        head = f"def program({', '.join(parameters)}):"
        coarse = any(t.rough and t.dtype == f64 for t in scope.tensors.values())
        return Case(
            f"{head}\n{text}\n    return {', '.join(returned)}\n",
            tuple(arguments),
            4 * scope.rounding,
            f32 if coarse else None,
        )

    # -- statements ---------------------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        kinds: tuple[Callable[[], None], ...] = (
            self.pointwise, self.contraction, self.pointwise, self.zero_dimensional, self.update, self.window,
            self.halves, self.gather, self.scatter, self.recurrence, self.sweeps, self.spread, self.nested_loops, self.paths,
            self.accumulate, self.slices, self.permuted, self.loop_block,
        )  # fmt: skip
        self.chooser.pick(kinds)()

    def left(self, low: int = 1, high: int = 3) -> dict[str, str]:
        return {name: self.scope.size() for name in _LEFT[: self.chooser.integer(low, high)]}

    def make(self, name: str, dims: tuple[str, ...], value: Value, dtype: DType | None = None) -> Tensor:
        """Records a tensor that holds `value`."""
        self.made.append(name)
        self.scope.rounding += 8
        found = value.type.dtype if dtype is None else dtype
        grain = value.grain if value.exact else None
        return self.scope.add(Tensor(name, found, dims, value.bound, grain, rough=value.coarse))

    def declare(self, stem: str, dtype: DType, dims: tuple[str, ...], fill: int | float | None) -> str:
        name = self.scope.fresh(stem)
        self.line(f"{name}: {_annotation(dtype, dims)}" + (f" = {fill}" if fill is not None else ""))
        return name

    def pointwise(self) -> None:
        """`t[i, j] = e`, declared where the ranges would not follow."""
        left = self.left()
        value = self.scope.expression(left, 3)
        subscripts, dims = ", ".join(left), tuple(left.values())
        if set(left) <= value.plain and not self.chooser.flag(20):
            name, dtype = self.scope.fresh("t"), value.type.dtype
        else:
            dtype = f64 if value.type.dtype.is_float and self.chooser.flag(20) else value.type.dtype
            name = self.declare("t", dtype, dims, None)
        self.line(f"{name}[{subscripts}] = {value.text}")
        self.make(name, dims, value, dtype)

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
        names = _name_dims(first.dims)
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

    def _tensor(self, dtype: DType, low: int = 1, high: int = 3) -> Tensor:
        """A tensor of the dtype and rank, new or old."""
        scope = self.scope
        known = [t for t in scope.tensors.values() if t.dtype == dtype and low <= len(t.dims) <= high]
        if known and not self.chooser.flag(40):
            return self.chooser.pick(known[::-1])
        return scope.parameter(tuple(scope.size() for _ in range(self.chooser.integer(low, high))), dtype)

    def update(self) -> None:
        """`t[i, j] op= e`, also of parameters, also under an `if`."""
        ch, scope = self.chooser, self.scope
        target = self._target()
        left = dict(zip(_LEFT, target.dims, strict=False))
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

    def slices(self) -> None:
        """Parts of a filled tensor are assigned: at an offset, with a stride, in one row."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(ch.pick((f32, f64, i32)), 1, 2)
        extent = scope.extent(x.dims[0])
        rest = ", j" if len(x.dims) == 2 else ""
        name = self.declare("t", x.dtype, (str(2 * extent + 1), *x.dims[1:]), 2)
        at = ch.pick(("i + 1", "2 * i", f"{2 * extent} - i", "2 * i + 1"))
        self.line(f"{name}[{at}{rest}] = {x.name}[i{rest}]")
        if ch.flag(50):
            self.line(f"{name}[0{rest}] = 3")
        self.make(name, (str(2 * extent + 1), *x.dims[1:]), replace(scope.read(x, ""), bound=max(3.0, x.bound)))

    def permuted(self) -> None:
        """A tensor assigned from its own other elements: the right side sees the values from before."""
        ch, scope = self.chooser, self.scope
        size = scope.size()
        square = ch.flag(50)
        dims = (size, size) if square else (size,)
        known = [t for t in scope.tensors.values() if t.dims == dims and t.dtype.kind != "b"]
        x = ch.pick(known) if known else scope.parameter(dims, ch.pick((f32, f64, i32)))
        n, last = x.name, f"{size} - 1"
        if square:
            right = ch.pick(
                (f"{n}[j, i]", f"{n}[i, {last} - j] + {n}[j, i]", f"{n}[{last} - i, j] - {n}[i, j]", f"sum[k]({n}[i, k]) - {n}[i, j]",
                 f"max[k]({n}[k, j])", f"{n}[i, 0] + {n}[0, j]" if scope.extent(size) else f"{n}[j, i]")
            )  # fmt: skip
            self.line(f"{n}[i, j] = {right}")
        else:
            right = ch.pick(
                (f"{n}[{last} - i]", f"where(i >= 1, {n}[i - 1], 0)", f"where(i < {last}, {n}[i + 1], 0) + {n}[i]",
                 f"{n}[i // 2]", f"{n}[i] - {n}[{last} - i]", f"max[k]({n}[k]) - {n}[i]")
            )  # fmt: skip
            self.line(f"{n}[i] = {right}")
        length = scope.extent(size)
        scope.rounding += length
        self._overwrite(x, x.bound * (length + 2), x.grain)

    def loop_block(self) -> None:
        """Several statements under one loop, with tensors that it carries and tensors of one iteration."""
        ch, scope = self.chooser, self.scope
        steps, size = scope.size(), scope.size()
        carried = self.declare("t", f32, (size,), ch.pick((0, 1)))
        total = scope.fresh("s")
        self.line(f"{total} = 0.0")
        self.line(f"for n in {ch.pick((f'range({steps})', f'range({steps} - 1, -1, -1)', f'range(0, {steps}, 2)'))}:")
        self.indent += 1
        scope.loops["n"] = steps
        t = scope.add(Tensor(carried, f32, (size,), 8.0, None, rough=True))
        value = scope.expression({"i": size}, 2)
        local = scope.fresh("v")
        self.line(
            f"{local}[i] = {carried}[i] / 2 + tanh({value.text if value.type.dtype.kind != 'b' else f'f32({value.text})'})"
        )
        scope.add(Tensor(local, f32, (size,), 8.0, None, rough=True))
        if ch.flag(50):
            self.line(f"{total} = {total} / 2 + sum[k]({local}[k]) / 16")
        if ch.flag(30):
            self.line("if i >= 1:")
            self.line(f"    {carried}[i] = f32({local}[i - 1] + {carried}[i] / 2)")
        else:
            self.line(f"{carried}[i] = f32({ch.pick((local + '[i]', f'max[k]({local}[k]) + {local}[i]'))})")
        self.line(f"{carried}[i] *= 0.5")
        del scope.loops["n"], scope.tensors[local]
        self.indent -= 1
        scope.rounding += 16 + 2 * scope.extent(steps) + scope.extent(size)
        scope.tensors[carried] = replace(t, bound=8.0)
        self.made.append(carried)

    def _target(self) -> Tensor:
        """A tensor that may be updated: written before, a parameter, or declared with a fill."""
        ch, scope = self.chooser, self.scope
        known = [t for t in scope.tensors.values() if 1 <= len(t.dims) <= 3 and t.dtype.kind != "b"]
        if known and not ch.flag(30):
            return ch.pick(known[::-1])
        dims = tuple(self.left(1, 2).values())
        dtype = ch.pick((f32, f64, i32))
        name = self.declare("t", dtype, dims, 1)
        return self.make(name, dims, Value("", scope.read(Tensor(name, dtype, dims, 1.0, 0), "").type, 1.0, 0))

    def _fitting(self, value: Value, target: Tensor) -> Value:
        """The value converted where its type may not enter the target unasked."""
        kind, into = value.type.dtype, target.dtype
        if into.is_integer and (kind.is_float or (not value.type.weak and kind != into)):
            if not value.exact:
                return Value("1", value.type, 1.0, 0)
            return replace(value, text=f"{into}(abs({value.text}))" if kind.kind != "b" else f"{into}({value.text})")
        if kind.kind == "b":
            return replace(value, text=f"{into}({value.text})")
        return value

    def _overwrite(self, target: Tensor, bound: float, grain: int | None, *, rough: bool = False) -> None:
        """Records new contents; scales them down by a statement of its own when they have grown."""
        name = target.name
        updated = replace(target, bound=bound, grain=grain, rough=target.rough or rough)
        if target.dtype.is_float and (bound > 64 or grain is None) and bound > 8:
            factor = 2.0 ** -math.ceil(math.log2(bound / 8))
            self.line(f"{name}[{', '.join(_LEFT[: len(target.dims)])}] *= {factor!r}")
            updated = replace(updated, bound=8.0, grain=None)
        self.scope.tensors[name] = updated
        self.made.append(name)
        self.scope.rounding += 8

    def _guard(self, left: dict[str, str]) -> str:
        if self.chooser.flag(30):
            return f"{self.chooser.pick(list(left))} < {self.scope.integer(0, 4)}"
        return self.scope.affine_condition(left)

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

    def window(self) -> None:
        """Convolutions and pools: `t[h] = x[2*h + r]` over r, the range of h from the bounds."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32 if ch.flag(70) else f64, 1, 2)
        stride, dilation = ch.pick((1, 2)), ch.pick((1, 2))
        length = scope.extent(x.dims[0])
        taps = ch.integer(1, 3)
        if (taps - 1) * dilation + 1 > length:
            taps = 1
        if length == 0:
            return self.pointwise()
        rest = ", j" if len(x.dims) == 2 else ""
        at = f"{'' if stride == 1 else f'{stride} * '}h + {'' if dilation == 1 else f'{dilation} * '}r"
        out = (length - 1 - (taps - 1) * dilation) // stride + 1
        dims = (str(out), *x.dims[1:])
        name = scope.fresh("t")
        kind = ch.pick(("sum", "max", "min"))
        self.line(f"{name}[h{rest}] = {kind}[r < {taps}]({x.name}[{at}{rest}])")
        scope.rounding += taps
        bound = x.bound * (taps if kind == "sum" else 1)
        self.make(name, dims, replace(scope.read(x, ""), bound=bound))
        return None

    def gather(self) -> None:
        """`t[i, j] = x[ids[i], j]`."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        high = scope.extent(x.dims[0])
        if high == 0:
            return self.pointwise()
        ids = scope.parameter((scope.size(),), ch.pick((i32, i64)), high)
        rest = ", j" if len(x.dims) == 2 else ""
        name = scope.fresh("t")
        self.line(f"{name}[i{rest}] = {x.name}[{ids.name}[i]{rest}]")
        self.make(name, (*ids.dims, *x.dims[1:]), scope.read(x, ""))
        return None

    def scatter(self) -> None:
        """`t[ids[i]] += x[i]`."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        size = scope.size()
        if scope.extent(size) == 0:
            return self.pointwise()
        ids = scope.parameter(x.dims[:1], ch.pick((i32, i64)), scope.extent(size))
        name = self.declare("t", f32, (size,), 0)
        rest = ", j" if len(x.dims) == 2 else ""
        value = scope.read(x, f"i{rest}")
        self.line(f"{name}[{ids.name}[i]] {ch.pick(('+=', '-='))} {value.text}")
        length = math.prod(map(scope.extent, x.dims))
        scope.rounding += length
        made = self.make(name, (size,), replace(value, bound=value.bound * max(1, length)))
        self._overwrite(made, made.bound, made.grain)
        return None

    def spread(self) -> None:
        """Several instances hit one element of an affine left side: `t[2*i + r] += x[i] * f[r]`."""
        ch, scope = self.chooser, self.scope
        x, f = self._tensor(f32, 1, 1), self._tensor(f32, 1, 1)
        stride = ch.pick((1, 2))
        n, r = scope.extent(x.dims[0]), scope.extent(f.dims[0])
        size = str(max(0, stride * (n - 1)) + r + ch.integer(0, 1))
        name = self.declare("t", f32, (size,), 0)
        at = f"{'' if stride == 1 else '2 * '}i + r"
        self.line(f"{name}[{at}] += {x.name}[i] * {f.name}[r]")
        scope.rounding += r
        grain = None if x.grain is None or f.grain is None else x.grain + f.grain
        made = self.make(
            name,
            (size,),
            replace(scope.read(x, ""), bound=x.bound * f.bound * max(1, r), grain=grain, rough=x.rough or f.rough),
        )
        self._overwrite(made, made.bound, made.grain)

    # -- sequential loops ---------------------------------------------------------------------------------------------------------

    def recurrence(self) -> None:
        """`t[n] = t[n - 1] / 2 + e`, forwards or backwards, perhaps through a tensor that lives for one iteration."""
        ch, scope = self.chooser, self.scope
        steps, left = scope.size(), self.left(0, 1)
        if scope.extent(steps) == 0:
            return self.pointwise()
        name = self.declare("t", f32, (steps, *left.values()), 0)
        forwards = not ch.flag(40)
        self.line(f"for n in range(1, {steps}):" if forwards else f"for n in range({steps} - 2, -1, -1):")
        self.indent += 1
        scope.loops["n"] = steps
        value = scope.expression(left, 2)
        if value.type.dtype != f32:
            value = replace(value, text=f"f32({value.text})", type=Type(f32))
        subscripts = "".join(f", {i}" for i in left)
        before = f"{name}[n {'-' if forwards else '+'} 1{subscripts}]"
        if left and ch.flag(30):
            local = scope.fresh("v")
            self.line(f"{local}[{', '.join(left)}] = {before} / 2")
            before = f"{local}[{', '.join(left)}] * 1"
        else:
            before = f"{before} / 2"
        self.line(f"{name}[n{subscripts}] = {before} + {value.text}")
        del scope.loops["n"]
        self.indent -= 1
        scope.rounding += scope.extent(steps)
        self.make(name, (steps, *left.values()), replace(value, bound=2 * value.bound, grain=None))
        return None

    def sweeps(self) -> None:
        """A stencil in place: each sweep sees the values from before it."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(ch.pick((f32, f64)), 1, 2)
        size = x.dims[0]
        count = ch.integer(1, 3)
        steps = scope.integer(count, count) if ch.flag(30) else str(count)
        rest = ", j" if len(x.dims) == 2 else ""
        self.line(f"for n in range({steps}):")
        self.line(f"    if 1 <= i < {size} - 1:")
        self.line(f"        {x.name}[i{rest}] = ({x.name}[i - 1{rest}] + {x.name}[i + 1{rest}]) / 2")
        scope.rounding += count
        self._overwrite(x, x.bound, None if x.grain is None else x.grain + count)

    def nested_loops(self) -> None:
        """Instances one after another: all subscripts are loop variables."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        rows = x.dims[0]
        backwards = ch.flag(30)
        self.line(f"for n in range({rows} - 2, -1, -1):" if backwards else f"for n in range(1, {rows}):")
        near = "n + 1" if backwards else "n - 1"
        if len(x.dims) == 1:
            self.line(f"    {x.name}[n] = ({x.name}[n] + {x.name}[{near}]) / 2")
        else:
            self.line(f"    for m in range(1, {x.dims[1]}):")
            self.line(f"        {x.name}[n, m] = ({x.name}[{near}, m] + {x.name}[n, m - 1]) / 2")
        scope.rounding += sum(map(scope.extent, x.dims))
        self._overwrite(x, x.bound, None)

    def paths(self) -> None:
        """Shortest paths: row and column of the step are read while the matrix is written."""
        scope = self.scope
        size = scope.size()
        squares = [t for t in scope.tensors.values() if t.dims == (size, size) and t.dtype.is_float]
        x = self.chooser.pick(squares) if squares else scope.parameter((size, size), f32)
        self.line(f"for n in range({size}):")
        self.line(f"    {x.name}[i, j] = min({x.name}[i, j], abs({x.name}[i, n]) + abs({x.name}[n, j]))")
        self._overwrite(x, x.bound, x.grain)


def _annotation(dtype: DType, dims: tuple[str, ...]) -> str:
    return f'{dtype}["{" ".join(dims)}"]' if dims else str(dtype)


def _name_dims(dims: tuple[str, ...]) -> list[str]:
    return [_LEFT[n] for n in range(len(dims))]


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None

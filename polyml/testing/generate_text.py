"""A random program in the making: its lines, what they have declared and written, and the case that comes of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from polyml.dtypes import DType, f32, f64, i32
from polyml.testing.cases import Case, Chooser
from polyml.testing.generate_expressions import Scope
from polyml.testing.generate_tensors import Tensor, Value

__all__ = ["LEFT", "ProgramText", "annotation", "name_dims"]

LEFT = ("i", "j", "l")


class ProgramText:
    """Lines of a program, and the tensors that they may use. Statements are methods of its subclasses."""

    def __init__(self, chooser: Chooser, large: bool) -> None:
        self.scope = Scope(chooser, large)
        self.chooser = chooser
        self.lines: list[str] = []
        self.indent = 1
        self.made: list[str] = []

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
                parameters.append(f"{name}: {annotation(t.dtype, t.dims)}")
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

    def left(self, low: int = 1, high: int = 3) -> dict[str, str]:
        return {name: self.scope.size() for name in LEFT[: self.chooser.integer(low, high)]}

    def make(self, name: str, dims: tuple[str, ...], value: Value, dtype: DType | None = None) -> Tensor:
        """Records a tensor that holds `value`."""
        self.made.append(name)
        self.scope.rounding += 8
        found = value.type.dtype if dtype is None else dtype
        grain = value.grain if value.exact else None
        weak = value.type.weak and dtype is None and not dims
        return self.scope.add(Tensor(name, found, dims, value.bound, grain, rough=value.coarse, weak=weak))

    def declare(self, stem: str, dtype: DType, dims: tuple[str, ...], fill: int | float | None) -> str:
        name = self.scope.fresh(stem)
        self.line(f"{name}: {annotation(dtype, dims)}" + (f" = {fill}" if fill is not None else ""))
        return name

    def _tensor(self, dtype: DType, low: int = 1, high: int = 3) -> Tensor:
        """A tensor of the dtype and rank, new or old."""
        scope = self.scope
        known = [t for t in scope.tensors.values() if t.dtype == dtype and low <= len(t.dims) <= high]
        if known and not self.chooser.flag(40):
            return self.chooser.pick(known[::-1])
        return scope.parameter(tuple(scope.size() for _ in range(self.chooser.integer(low, high))), dtype)

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
            self.line(f"{name}[{', '.join(LEFT[: len(target.dims)])}] *= {factor!r}")
            updated = replace(updated, bound=8.0, grain=None)
        self.scope.tensors[name] = updated
        self.made.append(name)
        self.scope.rounding += 8

    def _guard(self, left: dict[str, str]) -> str:
        if self.chooser.flag(30):
            return f"{self.chooser.pick(list(left))} < {self.scope.integer(0, 4)}"
        return self.scope.affine_condition(left)

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


def annotation(dtype: DType, dims: tuple[str, ...]) -> str:
    return f'{dtype}["{" ".join(dims)}"]' if dims else str(dtype)


def name_dims(dims: tuple[str, ...]) -> list[str]:
    return [LEFT[n] for n in range(len(dims))]


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None

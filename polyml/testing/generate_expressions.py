"""Random expressions over the tensors of a growing program: always in bounds, of moderate size, and exact where a decision hangs on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from polyml.dtypes import DType, boolean, f32, f64, i32, i64
from polyml.einsum_frontend.interpreter.types import Type, promote_types
from polyml.testing.generate_tensors import Tensor, Tensors, Value, settle

__all__ = ["Scope"]

_FLOAT_DTYPES = (f32, f64)


class Scope(Tensors):
    """A program while it grows: `expression` and its kin draw from `chooser`."""

    # -- accesses -----------------------------------------------------------------------------------------------------------------

    def access(self, indices: Mapping[str, str], dtype: DType | None = None) -> Value:
        """An element of some tensor at subscripts over `indices` (name -> size); of `dtype`, if given."""
        ch = self.chooser
        known = [
            t
            for t in self.tensors.values()
            if t.dims and (dtype is None or t.dtype == dtype) and self._reaches(t, indices)
        ]
        if known and not (len(self.arguments) < 5 and ch.flag(35)):
            return self.access_of(ch.pick(known[::-1]), indices)
        usable = list(indices)
        count = min(len(usable), 1 + ch.integer(0, 2))
        dims = tuple(indices[name] for name in usable[:count]) or (self.size(),)
        return self.access_of(self.parameter(dims, dtype), indices)

    def _reaches(self, tensor: Tensor, indices: Mapping[str, str]) -> bool:
        """Whether each dimension has an index of its size, or some element at all."""
        return all(d in indices.values() or self.extent(d) > 0 for d in tensor.dims)

    def access_of(self, tensor: Tensor, indices: Mapping[str, str]) -> Value:
        ch = self.chooser
        plain: set[str] = set()
        subscripts = []
        unused = list(indices)
        for dim in tensor.dims:
            fitting = [i for i in unused if indices[i] == dim] or [i for i in indices if indices[i] == dim]
            if not fitting:
                subscripts.append(ch.pick(("0", f"{dim} - 1")) if not dim.isdigit() else "0")
                continue
            index = ch.pick(fitting)
            if index in unused:
                unused.remove(index)
            if not ch.flag(15):
                subscripts.append(index)
                plain.add(index)
                continue
            subscripts.append(ch.pick((f"{dim} - 1 - {index}", f"{index} // 2", f"{index} - {index} % 2")))
        if ch.flag(8):
            return self._shifted(tensor, subscripts, indices)
        if ch.flag(5):
            return self._padded(tensor, subscripts, plain)
        return self.read(tensor, ", ".join(subscripts), frozenset(plain - set(self.loops)))

    def _shifted(self, tensor: Tensor, subscripts: list[str], indices: Mapping[str, str]) -> Value:
        """A neighbour under the condition that it exists, else a number."""
        for k, (s, dim) in enumerate(zip(subscripts, tensor.dims, strict=True)):
            if s in indices and indices[s] == dim:
                condition, moved = self.chooser.pick(
                    ((f"{s} >= 1", f"{s} - 1"), (f"{s} + 1 < {dim}", f"{s} + 1"), (f"0 <= {s} - 2", f"{s} - 2"))
                )
                subscripts[k] = moved
                value = self.read(tensor, ", ".join(subscripts))
                return replace(
                    value, text=f"where({condition}, {value.text}, {'False' if tensor.dtype == boolean else 0})"
                )
        return self.read(tensor, ", ".join(subscripts))

    def _padded(self, tensor: Tensor, subscripts: list[str], plain: set[str]) -> Value:
        before, after = self.chooser.integer(1, 2), self.chooser.integer(0, 2)
        offset = self.chooser.integer(1, before + after)
        k = self.chooser.integer(0, len(subscripts) - 1)
        plain.discard(subscripts[k])
        subscripts[k] = f"{subscripts[k]} + {offset}"
        widths = ", ".join(f"({before}, {after})" if n == k else "(0, 0)" for n in range(len(subscripts)))
        value = self.read(tensor, ", ".join(subscripts), frozenset(plain - set(self.loops)))
        comma = "," if len(subscripts) == 1 else ""
        return replace(value, text=f"pad({tensor.name}, ({widths}{comma}))[{', '.join(subscripts)}]")

    # -- expressions --------------------------------------------------------------------------------------------------------------

    def expression(self, indices: Mapping[str, str], depth: int) -> Value:
        """A scalar expression over `indices` and the loop variables; settled."""
        ch = self.chooser
        if depth <= 0 or not ch.flag(70):
            return self.leaf(indices)
        kind = ch.pick(
            ("binary", "function", "where", "extremum", "divide", "compare", "power", "logic", "cast", "reduce")
        )
        match kind:
            case "binary":
                return self._binary(self.expression(indices, depth - 1), self.expression(indices, depth - 1))
            case "function":
                return self._function(self.expression(indices, depth - 1))
            case "where":
                return self._where(indices, depth)
            case "extremum":
                a, b = _numeric(self.expression(indices, depth - 1)), _numeric(self.expression(indices, depth - 1))
                return _joined(a, b, f"{ch.pick(('min', 'max'))}({a.text}, {b.text})", max(a.bound, b.bound))
            case "divide":
                a, by = _numeric(self.expression(indices, depth - 1)), ch.pick((2, 3))
                floats = Type(a.type.dtype if a.type.dtype.is_float else f64, a.type.weak)
                return (
                    Value(f"{a.text} / {by}", floats, a.bound / by, None, a.plain, a.coarse)
                    if by == 3
                    else _half(a, floats)
                )
            case "compare":
                condition = self.condition(indices)
                return Value(f"where({condition}, 1, 0)", Type(i64, weak=True), 1.0, 0)
            case "power":
                return self._power(_numeric(self.expression(indices, depth - 1)))
            case "logic":
                conditions = (self.condition(indices), self.condition(indices))
                text = ch.pick(("{} and {}", "{} or {}", "{} and not {}")).format(*(f"({c})" for c in conditions))
                weak = not any("[" in c for c in conditions)
                return Value(f"({text})", Type(boolean, weak=weak), 1.0, 0)
            case "cast":
                a = self.expression(indices, depth - 1)
                target = ch.pick((f32, f64, i32, i64)) if not a.type.dtype.is_float else ch.pick(_FLOAT_DTYPES)
                return settle(Value(f"{target}({a.text})", Type(target), a.bound, a.grain, a.plain, a.coarse))
            case _:
                return self.reduced(indices, depth - 1)

    def leaf(self, indices: Mapping[str, str]) -> Value:
        ch = self.chooser
        everything = {**indices, **self.loops}
        match ch.pick(("access", "access", "access", "access", "number", "index", "zero")):
            case "number":
                number = ch.pick((2, 1, 0.5, 3))
                kind = i64 if isinstance(number, int) else f64
                return Value(repr(number), Type(kind, weak=True), number, 0 if kind == i64 else 1)
            case "index" if indices:
                name = ch.pick(list(everything))
                return Value(name, Type(i64, weak=True), 17.0, 0)
            case "zero":
                scalars = [t for t in self.tensors.values() if not t.dims]
                if not scalars and ch.flag(40):
                    scalars = [self.scalar()]
                if scalars:
                    return self.read(ch.pick(scalars), "")
                return self.access(everything)
            case _:
                return self.access(everything)

    def condition(self, indices: Mapping[str, str]) -> str:
        """An affine condition, or a comparison of exact values."""
        ch = self.chooser
        if indices and not ch.flag(50):
            return self.affine_condition(indices)
        a, b = _numeric(self.access({**indices, **self.loops})), ch.pick(("0", "1"))
        if not a.exact:
            return self.affine_condition(indices) if indices else "1 < 2"
        return f"{a.text} {ch.pick(('>', '<=', '==', '!='))} {b}"

    def affine_condition(self, indices: Mapping[str, str], *, states: bool = True) -> str:
        """A condition that names indices. states: it may be one that a reducer would take for the range of its index."""
        ch = self.chooser
        a, b = ch.pick(list(indices)), ch.pick(list(indices))
        options = [f"{a} % 2 == 0", f"{a} + {b} < 4", f"{a} >= 1", f"1 <= {a} < {indices[a]} - 1", f"{a} != {b} + 1"]
        if states:
            options += [f"{a} < 2", f"{a} <= {b}", *(f"{a} <= {t}" for t in self.loops)]
        else:
            options += [f"{t} >= {a}" for t in self.loops]
        return ch.pick(options)

    def _where(self, indices: Mapping[str, str], depth: int) -> Value:
        condition = self.condition(indices)
        a, b = _numeric(self.expression(indices, depth - 1)), _numeric(self.expression(indices, depth - 1))
        found = _joined(a, b, f"where({condition}, {a.text}, {b.text})", max(a.bound, b.bound))
        return replace(found, plain=frozenset())

    def _binary(self, a: Value, b: Value) -> Value:
        a, b = _numeric(a), _numeric(b)
        match self.chooser.pick(("+", "*", "-")):
            case "*":
                found = _joined(a, b, f"{_factor(a)} * {_factor(b)}", a.bound * b.bound)
                grain = None if a.grain is None or b.grain is None else a.grain + b.grain
                return settle(replace(found, grain=grain))
            case "-":
                unsigned = promote_types(a.type, b.type).dtype.kind == "u"
                return settle(_joined(a, b, f"({a.text} - ({b.text}))", 2.0**64 if unsigned else a.bound + b.bound))
            case _:
                return settle(_joined(a, b, f"({a.text} + {b.text})", a.bound + b.bound))

    def _power(self, a: Value) -> Value:
        """A square, or of integers also a quotient or remainder."""
        if a.type.dtype.is_integer and self.chooser.flag(60):
            return replace(a, text=f"{_factor(a)} {self.chooser.pick(('//', '%'))} {self.chooser.pick((2, 3))}")
        return settle(
            replace(a, text=f"{_factor(a)} ** 2", bound=a.bound**2, grain=None if a.grain is None else 2 * a.grain)
        )

    def _function(self, a: Value) -> Value:
        ch = self.chooser
        a = _numeric(a)
        if not a.type.dtype.is_float:
            name = ch.pick(("abs", "relu"))
            return replace(a, text=f"{name}({a.text})")
        name = ch.pick(
            (
                "relu",
                "abs",
                "exp",
                "tanh",
                "sigmoid",
                "sqrt",
                "log",
                "rsqrt",
                "sin",
                "cos",
                "gelu",
                "erf",
                "floor",
                "round",
            )
        )
        rounded = replace(a, grain=None)
        match name:
            case "relu" | "abs":
                return replace(a, text=f"{name}({a.text})")
            case "floor" | "round" if a.exact:
                return replace(a, text=f"{name}({a.text})", grain=0, bound=a.bound + 1)
            case "exp" if a.bound <= 4:
                return replace(rounded, text=f"exp({a.text})", bound=math.exp(a.bound))
            case "sqrt" | "log" | "rsqrt":
                return replace(rounded, text=f"{name}(abs({a.text}) + 1)", bound=a.bound + 1)
            case "sin" | "cos" | "tanh" | "sigmoid" | "erf":
                return replace(rounded, text=f"{name}({a.text})", bound=1.0)
            case "gelu":
                return replace(rounded, text=f"gelu({a.text})")
            case _:
                return replace(a, text=f"-({a.text})")

    # -- reductions ---------------------------------------------------------------------------------------------------------------

    def reduced(self, indices: Mapping[str, str], depth: int) -> Value:
        """A reducer over one or two new indices."""
        ch = self.chooser
        own = {ch.pick(("k", "q")): self.size()}
        if ch.flag(20):
            own["r"] = self.size()
        own = {self._free_name(name, indices): size for name, size in own.items()}
        inner = {**indices, **own}
        if depth > 0 and not ch.flag(50):
            body = _numeric(self.expression(inner, depth))
        else:
            body = _numeric(self.access(inner))
            if ch.flag(50):
                body = self._binary(body, self.access(inner))
        conditions = [f"{name} < {size}" for name, size in own.items() if name not in body.plain]
        items = [name for name in own if name in body.plain] + conditions
        kind = ch.pick(("sum", "max", "min", "prod", "any", "all", "argmax"))
        may_be_empty = ch.flag(25)
        if may_be_empty:
            items.append(self.affine_condition(own, states=False))
            kind = "sum" if kind in ("max", "min", "argmax") else kind
        length = math.prod(self.extent(size) for size in own.values())
        if length == 0 and kind in ("max", "min", "argmax"):
            kind = "sum"
        found = self._reduction(kind, items, body, length, may_be_empty=may_be_empty or length == 0)
        return replace(found, plain=body.plain - set(own) if not conditions else frozenset())

    def _free_name(self, name: str, indices: Mapping[str, str]) -> str:
        return self.fresh(name) if name in indices or name in self.loops else name

    def _reduction(self, kind: str, items: list[str], body: Value, length: int, *, may_be_empty: bool) -> Value:
        self.rounding += length
        over = ", ".join(items)
        if kind in ("any", "all"):
            if body.exact:
                return Value(f"{kind}[{over}]({body.text} > 0)", Type(boolean, body.type.weak), 1.0, 0)
            kind = "sum" if may_be_empty else "max"
        if kind == "argmax" and (not body.exact or len(items) != 1):
            kind = "sum"
        if kind == "argmax":
            return Value(f"{self.chooser.pick(('argmax', 'argmin'))}[{over}]({body.text})", Type(i64), 17.0, 0)
        if kind in ("max", "min"):
            return replace(body, text=f"{kind}[{over}]({body.text})")
        if body.type.dtype.is_integer and body.type.dtype.bits < 32:
            wide = self.chooser.pick((i32, i64, f32))
            body = replace(body, text=f"{wide}({body.text})", type=Type(wide))
        if kind == "prod" and length <= 6 and body.bound <= 4:
            grain = None if body.grain is None else body.grain * length
            bound = max(1.0, body.bound) ** length
            return settle(replace(body, text=f"prod[{over}]({body.text})", bound=bound, grain=grain))
        return settle(replace(body, text=f"sum[{over}]({body.text})", bound=body.bound * max(1, length)))


def _numeric(value: Value) -> Value:
    """A bool as an integer; anything else as it is."""
    if value.type.dtype != boolean:
        return value
    return replace(value, text=f"i32({value.text})", type=Type(i32))


def _joined(a: Value, b: Value, text: str, bound: float) -> Value:
    grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
    return Value(text, promote_types(a.type, b.type), bound, grain, a.plain | b.plain, a.coarse or b.coarse)


def _half(a: Value, floats: Type) -> Value:
    return Value(f"{_factor(a)} / 2", floats, a.bound / 2, None if a.grain is None else a.grain + 1, a.plain, a.coarse)


def _factor(a: Value) -> str:
    return a.text if a.text.isidentifier() or a.text.endswith("]") else f"({a.text})"

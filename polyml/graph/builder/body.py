"""Right sides: surface expressions to typed expressions over tensors, every access proved in bounds where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from polyml.dtypes import DTYPES, boolean, i32, i64
from polyml.einsum_frontend.proofs import prove_in_bounds, prove_not_empty
from polyml.einsum_frontend.quasi_affine import (
    Constraint,
    Names,
    constraint_of,
    necessary,
    needs_affine,
    reads_tensor,
    to_affine,
    why_not_affine,
)
from polyml.einsum_frontend.ranges import Range, interval
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Pad,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.typing import Typed, apply, cast, converted, element, is_narrow, number
from polyml.errors import NotAffineError, ShapeError
from polyml.expressions import Apply, Const, Read
from polyml.expressions import Subscript as GraphSubscript
from polyml.graph.builder.clamped import Cases, by_cases
from polyml.graph.builder.complex import applied
from polyml.graph.builder.gather import checked_index
from polyml.graph.builder.ordered import in_order
from polyml.graph.builder.parts import Path, fold, image, index_value
from polyml.graph.builder.reduction import Reduction, nested, nonzero, typed_terms
from polyml.graph.builder.state import State, Variable
from polyml.sets.affine import Affine, Extent, affine, extent_of
from polyml.source import Span

__all__ = ["Body", "extents_of"]

_OPS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
    "&": "bitand", "|": "bitor", "^": "bitxor", "<<": "shl", ">>": "shr",
}  # fmt: skip
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


def extents_of(state: State, names: Names, node: Subscript) -> tuple[Extent, ...]:
    """The shape of the tensor that an access subscripts, padding included; its rank is checked.

    Raises:
        ShapeError: another number of subscripts, or of pad widths.
    """
    name = node.tensor.tensor if isinstance(node.tensor, Pad) else node.tensor
    shape = state.lookup(name, node.span).shape
    if len(shape) != len(node.subscripts):
        raise ShapeError(
            f"{name} has {len(shape)} dimensions, and is read with {len(node.subscripts)} subscripts",
            span=node.span,
            hint=None if node.subscripts else f"a bare tensor name is no value: write {name}[..]",
        )
    if not isinstance(node.tensor, Pad):
        return shape
    widths = _pad_widths(state, node.tensor, names)
    if len(widths) != len(shape):
        message = f"pad gives {len(widths)} pairs of widths for the {len(shape)} dimensions of {name}"
        raise ShapeError(message, span=node.tensor.span)
    return tuple(extent_of(before + after + extent) for extent, (before, after) in zip(shape, widths, strict=True))


def _pad_widths(state: State, pad: Pad, names: Names) -> list[tuple[Affine, Affine]]:
    """The (before, after) pairs: numbers, or expressions in symbolic sizes."""
    found = []
    for pair in pad.widths:
        before, after = (needs_affine(width, names, role="a pad width") for width in pair)
        for width in (before, after):
            if not (width.is_constant or width.variables() <= {*state.sizes}) or (
                width.is_constant and width.constant < 0
            ):
                raise ShapeError("pad widths must be numbers >= 0", span=pad.span)
            state.assume([] if width.is_constant else [width])
        found.append((before, after))
    return found


class Body:
    """Translates the expressions of one statement.

    names: what its indices, loop variables and sizes stand for. ranges: of every index, by the name in the text. label: the target's name.
    extra: conditions of an enclosing `if` that name indices which implied sums bind.
    """

    def __init__(self, state: State, names: Names, ranges: Mapping[str, Range], label: str) -> None:
        self.state, self.names, self.ranges, self.label = state, names, ranges, label
        self.extra: Sequence[Constraint] = ()

    # -- expressions ----------------------------------------------------------------------------------------------

    def value(self, node: Expression, path: Path) -> Typed:
        """The typed expression; every access in it is proved in bounds on `path`."""
        match node:
            case Number():
                return number(node.value)
            case IndexRef() | LoopRef() | SizeRef():
                return index_value(needs_affine(node, self.names, role="an index value"))
            case Subscript():
                return self.read(node, path)
            case Unary() | Binary():
                return self.arithmetic(node, path)
            case Compare():
                values = [self.value(operand, path) for operand in node.operands]
                links = zip(values, node.ops, values[1:], strict=False)
                return fold("and", [apply(_COMPARE[op], [a, b], node.span) for a, op, b in links], node.span)
            case Boolean():
                return fold(node.op, [self.value(operand, path) for operand in node.operands], node.span)
            case Call():
                return self.call(node, path)
            case Reducer():
                ordered = self.in_order(node, path)
                if ordered is not node:
                    return self.value(ordered, path)
                return nested(self.state, self.label, self.reduction(node, path))
            case Name():
                raise AssertionError(f"internal: the name {node.identifier} is not resolved")
            case _:
                assert_never(node)

    def arithmetic(self, node: Unary | Binary, path: Path) -> Typed:
        known = to_affine(node, self.names)
        if known is not None:
            return index_value(known)
        if isinstance(node, Unary):
            return apply("neg" if node.op == "-" else "not", [self.operand(node.operand, path)], node.span)
        operands = [self.operand(node.left, path), self.operand(node.right, path)]
        return applied(self.state, self.label, _OPS[node.op], operands, path, node.span)

    def operand(self, node: Expression, path: Path) -> Typed:
        """The value in the type that it is computed with: in subscripts 32 bits at least."""
        value = self.value(node, path)
        return converted(value, i32) if path.in_subscript and is_narrow(value.dtype) else value

    def call(self, node: Call, path: Path) -> Typed:
        if node.function == "where":
            return self.where(node, path)
        args = [self.operand(arg, path) for arg in node.args]
        if node.function in DTYPES:
            return converted(args[0], DTYPES[node.function], node.span)
        if node.function in ("min", "max"):
            return fold(node.function, args, node.span)
        return applied(self.state, self.label, node.function, args, path, node.span)

    def where(self, node: Call, path: Path) -> Typed:
        """A select; its branches stand where the condition holds, or does not."""
        test, *branches = node.args
        condition = self.value(test, path)
        whole = constraint_of(test, self.names)
        values = []
        for branch, truth in zip(branches, (True, False), strict=True):
            inside = path.within(necessary(test, self.names, truth))
            if whole is not None and not isinstance(branch, Number) and inside.scope.points().is_empty():
                self.state.warnings.append(f"{branch.span}: this branch of `where` is never reached at these sizes")
            if whole is None:
                held = cast(condition.expr, boolean)
                inside = replace(inside, data=(*path.data, held if truth else Apply("not", (held,), boolean)))
            values.append(self.operand(branch, inside))
        return apply("select", [condition, *values], node.span)

    # -- accesses -------------------------------------------------------------------------------------------------

    def read(self, node: Subscript, path: Path) -> Typed:
        if (cases := by_cases(node)) is not None:
            return self.clamped(cases, path, node.span)
        extents = extents_of(self.state, self.names, node)
        name = node.tensor.tensor if isinstance(node.tensor, Pad) else node.tensor
        variable = self.state.lookup(name, node.span)
        subscripts = self.subscripts(node.subscripts, extents, name, path)
        if isinstance(node.tensor, Pad):
            return self.padded(node.tensor, variable, subscripts, path, node.span)
        return self.element(variable, subscripts, path, node.span)

    def clamped(self, cases: Cases, path: Path, span: Span) -> Typed:
        """A select between two reads; one of them alone, where the other one is never done."""
        reads = []
        for read, truth in ((cases.first, True), (cases.second, False)):
            inside = path.within(necessary(cases.test, self.names, truth))
            if not inside.scope.points().is_empty():
                reads.append(self.read(read, inside))
        match reads:
            case []:
                return self.read(cases.first, path)
            case [only]:
                return only
            case _:
                return apply("select", [self.value(cases.test, path), *reads], span)

    def subscripts(
        self, written: Sequence[Expression], extents: Sequence[Extent], name: str, path: Path
    ) -> tuple[GraphSubscript, ...]:
        """The subscripts of an access to `name`: affine ones proved in bounds, gathers checked."""
        found: list[GraphSubscript] = []
        known = path.scope.known
        for position, (node, extent) in enumerate(zip(written, extents, strict=True)):
            value = to_affine(node, self.names)
            if value is not None:
                prove_in_bounds(
                    value,
                    extent,
                    path.scope,
                    access=name,
                    position=position,
                    span=node.span,
                    known=known,
                    avoid=self.state.avoid,
                )
                found.append(value)
                continue
            if not reads_tensor(node):
                if path.scope.points().is_empty():  # x[(i + 1) % N] of an empty tensor: nothing is read
                    found.append(affine(0))
                    continue
                needs_affine(node, self.names, role=f"subscript {position} of {name}")
            index = self.value(node, replace(path, in_subscript=True))
            found.append(checked_index(self.state, index, extent, path, access=name, position=position, span=node.span))
        return tuple(found)

    def element(self, variable: Variable, subscripts: tuple[GraphSubscript, ...], path: Path, span: Span) -> Typed:
        """One element, proved to be written before."""
        if variable.home is not None:
            self.state.require_written(variable, image(subscripts, variable, path.scope), "read", span)
        if variable.tensor is None:  # no instance reads it, or the proof would have failed
            return converted(Typed(Const(0, i64), True), variable.dtype)
        return element(Read(variable.tensor.name, subscripts, variable.dtype), variable.weak)

    def padded(
        self, pad: Pad, variable: Variable, subscripts: tuple[GraphSubscript, ...], path: Path, span: Span
    ) -> Typed:
        """`select(inside, x[.. - before], 0)`, without the select where the path implies the inside."""
        shifted: list[GraphSubscript] = []
        tests: list[tuple[Affine, Extent]] = []
        known = path.scope.known
        for subscript, extent, (before, _) in zip(
            subscripts, variable.shape, _pad_widths(self.state, pad, self.names), strict=True
        ):
            if not isinstance(subscript, Affine):
                raise NotAffineError("a padded tensor cannot be gathered from", span=span, hint="pad it in a statement")
            moved = subscript - before
            shifted.append(moved)
            low, high = interval(moved, known)
            if low is None or low < 0 or high is None or not isinstance(extent, int) or high >= extent:
                tests.append((moved, extent))
        inside = [_inside(value, extent) for value, extent in tests]
        outside = " or ".join(f"not ({c.text})" for c in inside)
        if not inside or path.scope.points(outside).is_empty():
            return self.element(variable, tuple(shifted), path, span)
        parts = [
            apply(op, [index_value(value), index_value(bound)])
            for value, extent in tests
            for op, bound in (("ge", affine(0)), ("lt", affine(extent)))
        ]
        read = self.element(variable, tuple(shifted), path.within(*inside), span)
        return apply(
            "select", [fold("and", parts, span), read, number(False if variable.dtype.kind == "b" else 0)], span
        )

    # -- reducers -------------------------------------------------------------------------------------------------

    def in_order(self, node: Expression, path: Path) -> Expression:
        """A sum of several complex factors as sums within sums, where that is cheaper and may be; any other expression itself."""
        if not self.state.reorders or path.data or self.extra or not isinstance(node, Reducer):
            return node
        left = {r.name for r in path.scope.indices}
        # What is left around an inner sum may be several sums as well.
        while isinstance(node, Reducer) and (ordered := in_order(self.state, node, self.ranges, left)) is not node:
            node = ordered
        return node

    def reduction(self, node: Reducer, path: Path) -> Reduction:
        """A reducer's parts; its conditions, and zeros that a sum may skip, restrict its points.

        Raises:
            ShapeError: nothing to reduce for max, min, argmax, argmin. DTypeError: a sum of narrow integers.
        """
        ranges = [self.ranges[item.name] for item in node.items if isinstance(item, IndexRef)]
        bound = tuple(r.name for r in ranges)
        inner = replace(path, scope=path.scope.bind(ranges))
        inner = inner.within(*(self.condition(item) for item in node.items if not isinstance(item, IndexRef)))
        if node.implied:
            inner = inner.within(*(c for c in self.extra if not c.names.isdisjoint(bound)))
        body, padded = node.body, False
        if node.kind == "sum" and self.state.reorders:  # else 0 times an infinity must stay NaN
            body, conditions = nonzero(body, self.names, self.not_padding)
            padded = bool(conditions) and inner.scope.conditions[: len(path.scope.conditions)] == inner.scope.conditions
            inner = inner.within(*conditions)
        if node.kind in ("max", "min", "argmax", "argmin"):
            prove_not_empty(path.scope, inner.scope, kind=node.kind, span=node.span, avoid=self.state.avoid)
        terms = typed_terms(node.kind, self.value(body, inner), node.span)
        kind = {"max": "any", "min": "all"}.get(node.kind, node.kind) if terms.dtype == boolean else node.kind
        return Reduction(kind, path, inner, bound, terms, node.span, padded)

    def condition(self, item: Expression) -> Constraint:
        """A reducer's condition."""
        found = constraint_of(item, self.names)
        if found is None:
            why, part = why_not_affine(item, self.names)
            raise NotAffineError(
                f"a reducer's condition must be affine in indices, loop variables and sizes, but this one {why}",
                span=part.span,
                hint="put a condition on data into the body: where(condition, .., 0)",
            )
        return found

    def not_padding(self, node: Subscript) -> list[Constraint]:
        """The conditions under which a padded access is inside."""
        assert isinstance(node.tensor, Pad), "internal: a padded access"
        extents = self.state.lookup(node.tensor.tensor, node.span).shape
        widths = _pad_widths(self.state, node.tensor, self.names)
        found = []
        for subscript, extent, (before, after) in zip(node.subscripts, extents, widths, strict=True):
            value = to_affine(subscript, self.names)
            if value is not None and (before, after) != (affine(0), affine(0)):
                found.append(_inside(value - before, extent))
        return found


def _inside(value: Affine, extent: Extent) -> Constraint:
    end = affine(extent)
    return Constraint(f"0 <= {value.isl_text()} < {end.isl_text()}", value.variables() | end.variables())

"""Right sides: surface expressions to typed expressions over tensors, nested reducers to Equations of their own, gathers to checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import islpy as isl

from polyml.dtypes import DTYPES, DType, boolean, i64
from polyml.einsum_frontend.proofs import (
    Scope,
    points_without_items,
    prove_in_bounds,
    prove_not_empty,
)
from polyml.einsum_frontend.quasi_affine import (
    Constraint,
    Names,
    constraint_of,
    necessary,
    needs_affine,
    nodes,
    to_affine,
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
from polyml.einsum_frontend.typing import Typed, apply, cast, is_narrow, number
from polyml.errors import BoundsError, DTypeError, NotAffineError, ShapeError, UnboundedDomainError
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, walk
from polyml.expressions import Subscript as GraphSubscript
from polyml.graph.build_state import Flag, State, Variable
from polyml.graph.ir import Check, Equation, Tensor
from polyml.sets.affine import Affine, affine
from polyml.source import Span

__all__ = ["Body", "Path", "Reduction", "extents_of"]

_OPS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow"}
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


@dataclass(frozen=True, slots=True)
class Path:
    """Where an expression stands: the points (`scope`), and the conditions on data that hold there."""

    scope: Scope
    data: tuple[Expr, ...] = ()

    def within(self, *conditions: Constraint | None) -> Path:
        return replace(self, scope=self.scope.within(*conditions))


@dataclass(frozen=True, slots=True)
class Reduction:
    """A translated reducer: `body` over the points of `inner`, which binds `bound` besides what `outer` has."""

    kind: str
    outer: Path
    inner: Path
    bound: tuple[str, ...]
    body: Typed
    span: Span

    @property
    def result(self) -> DType:
        return i64 if self.kind in ("argmax", "argmin") else self.body.dtype

    @property
    def weak(self) -> bool:
        return self.body.weak and self.kind not in ("argmax", "argmin")

    def free(self) -> list[Range]:
        """The outer indices that the body or the reducer's own conditions use."""
        own = self.inner.scope.conditions[len(self.outer.scope.conditions) :]
        used = variables_of(self.body.expr).union(*(c.names for c in own))
        used |= {n for r in self.inner.scope.indices if r.name in self.bound for n in _tokens(r)}
        return [r for r in self.outer.scope.indices if r.name in used]


def extents_of(state: State, names: Names, node: Subscript) -> tuple[int, ...]:
    """The shape of the tensor that an access subscripts, padding included; its rank is checked.

    Raises:
        ShapeError: another number of subscripts.
    """
    pad = node.tensor if isinstance(node.tensor, Pad) else None
    name = pad.tensor if pad else node.tensor
    assert isinstance(name, str), "internal: an access names a tensor"
    shape = state.lookup(name, node.span).shape
    if len(shape) != len(node.subscripts):
        raise ShapeError(
            f"{name} has {len(shape)} dimensions, and is read with {len(node.subscripts)} subscripts",
            span=node.span,
            hint=f"a bare tensor name is no value: write {name}[..]" if not node.subscripts else None,
        )
    if pad is None:
        return shape
    if len(pad.widths) != len(shape):
        raise ShapeError(
            f"pad gives {len(pad.widths)} pairs of widths for the {len(shape)} dimensions of {name}", span=pad.span
        )
    return tuple(d + a + b for d, (a, b) in zip(shape, pad_widths(pad, names), strict=True))


def pad_widths(pad: Pad, names: Names) -> list[tuple[int, int]]:
    """The (before, after) pairs as numbers."""
    found = []
    for pair in pad.widths:
        before, after = (needs_affine(width, names, role="a pad width") for width in pair)
        if not (before.is_constant and after.is_constant) or before.constant < 0 or after.constant < 0:
            raise ShapeError("pad widths must be numbers >= 0", span=pad.span)
        found.append((before.constant, after.constant))
    return found


def variables_of(expr: Expr) -> frozenset[str]:
    """The index and loop variables that an expression mentions."""
    found: set[str] = set()
    for node in walk(expr):
        match node:
            case IndexValue():
                found |= node.affine.variables()
            case Read():
                for subscript in node.subscripts:
                    if isinstance(subscript, Affine):
                        found |= subscript.variables()
            case _:
                pass
    return frozenset(found)


def _tokens(range_: Range) -> set[str]:
    text = "".join(c if c.isalnum() or c == "_" else " " for c in range_.constraint)
    return set(text.split())


class Body:
    """Translates the expressions of one statement.

    names: what its indices, loop variables and sizes stand for. ranges: of every index, by the name in the text. label: the target's name.
    extra: conditions of an enclosing `if` that name indices which implied sums bind.
    """

    def __init__(
        self,
        state: State,
        names: Names,
        ranges: Mapping[str, Range],
        label: str,
        extra: Sequence[Constraint] = (),
    ) -> None:
        self.state, self.names, self.ranges, self.label, self.extra = state, names, ranges, label, extra

    # -- expressions ----------------------------------------------------------------------------------------------

    def value(self, node: Expression, path: Path) -> Typed:
        """The typed expression; every access in it is proved in bounds on `path`."""
        match node:
            case Number():
                return number(node.value)
            case IndexRef() | LoopRef() | SizeRef():
                return _index_value(needs_affine(node, self.names, role="an index value"))
            case Subscript():
                return self.read(node, path)
            case Unary():
                known = to_affine(node, self.names)
                if known is not None:
                    return _index_value(known)
                return apply("neg" if node.op == "-" else "not", [self.value(node.operand, path)], node.span)
            case Binary():
                known = to_affine(node, self.names)
                if known is not None:
                    return _index_value(known)
                args = [self.value(node.left, path), self.value(node.right, path)]
                return apply(_OPS[node.op], args, node.span)
            case Compare():
                return self.comparison(node, path)
            case Boolean():
                return _fold(node.op, [self.value(operand, path) for operand in node.operands], node.span)
            case Call():
                return self.call(node, path)
            case Reducer():
                return self.nested(self.reduction(node, path))
            case Name():
                raise AssertionError(f"internal: the name {node.identifier} is not resolved")
            case _:
                assert_never(node)

    def comparison(self, node: Compare, path: Path) -> Typed:
        values = [self.value(operand, path) for operand in node.operands]
        links = zip(values, node.ops, values[1:], strict=False)
        return _fold("and", [apply(_COMPARE[op], [a, b], node.span) for a, op, b in links], node.span)

    def call(self, node: Call, path: Path) -> Typed:
        if node.function == "where":
            return self.where(node, path)
        args = [self.value(arg, path) for arg in node.args]
        if node.function in DTYPES:
            return Typed(_converted(args[0], DTYPES[node.function], node.span), False)
        if node.function in ("min", "max"):
            return _fold(node.function, args, node.span)
        return apply(node.function, args, node.span)

    def where(self, node: Call, path: Path) -> Typed:
        test, chosen, other = node.args
        condition = self.value(test, path)
        whole = constraint_of(test, self.names)
        branches = []
        for branch, truth in ((chosen, True), (other, False)):
            known = necessary(test, self.names, truth)
            inside = path.within(known)
            if whole is not None and not isinstance(branch, Number) and inside.scope.points().is_empty():
                self.state.warnings.append(f"{branch.span}: this branch of `where` is never reached at these sizes")
            if whole is None:
                held = cast(condition.expr, boolean)
                inside = replace(inside, data=(*path.data, held if truth else Apply("not", (held,), boolean)))
            branches.append(self.value(branch, inside))
        return apply("select", [condition, *branches], node.span)

    # -- accesses -------------------------------------------------------------------------------------------------

    def read(self, node: Subscript, path: Path) -> Typed:
        extents = extents_of(self.state, self.names, node)
        name = node.tensor.tensor if isinstance(node.tensor, Pad) else node.tensor
        variable = self.state.lookup(name, node.span)
        subscripts = self.subscripts(node.subscripts, extents, name, path)
        if isinstance(node.tensor, Pad):
            return self.padded(node.tensor, variable, subscripts, path, node.span)
        return self.element(variable, subscripts, path, node.span)

    def subscripts(
        self, nodes_: Sequence[Expression], extents: Sequence[int], name: str, path: Path
    ) -> tuple[GraphSubscript, ...]:
        """The subscripts, affine ones proved in bounds, gathers checked."""
        found: list[GraphSubscript] = []
        for position, (node, extent) in enumerate(zip(nodes_, extents, strict=True)):
            value = to_affine(node, self.names)
            if value is None:
                found.append(self.gather(node, extent, name, position, path))
                continue
            prove_in_bounds(
                value, extent, path.scope, access=name, position=position, span=node.span, known=path.scope.known
            )
            found.append(value)
        return tuple(found)

    def element(self, variable: Variable, subscripts: tuple[GraphSubscript, ...], path: Path, span: Span) -> Typed:
        if variable.home is not None:
            self.state.require_written(variable, image(subscripts, variable, path.scope), "read", span)
        tensor = variable.tensor
        if tensor is None:  # nothing of it is read, or the debt would have been refused
            return Typed(Const(0, variable.dtype), False)
        return Typed(Read(tensor.name, subscripts, variable.dtype), variable.weak)

    def padded(
        self, pad: Pad, variable: Variable, subscripts: tuple[GraphSubscript, ...], path: Path, span: Span
    ) -> Typed:
        """`select(inside, x[.. - before], 0)`, without the select where the path implies the inside."""
        shifted: list[GraphSubscript] = []
        tests: list[tuple[Affine, int]] = []
        for subscript, extent, (before, _) in zip(subscripts, variable.shape, pad_widths(pad, self.names), strict=True):
            if not isinstance(subscript, Affine):
                raise NotAffineError("a padded tensor cannot be gathered from", span=span, hint="pad it in a statement")
            moved = subscript - before
            shifted.append(moved)
            low, high = interval(moved, path.scope.known)
            if low is None or low < 0 or high is None or high >= extent:
                tests.append((moved, extent))
        inside = [_inside(value, extent) for value, extent in tests]
        text = " or ".join(f"not ({c.text})" for c in inside)
        if not inside or path.scope.points(text).is_empty():
            return self.element(variable, tuple(shifted), path, span)
        condition = _fold("and", [c for value, extent in tests for c in _inside_test(value, extent)], span)
        read = self.element(variable, tuple(shifted), path.within(*inside), span)
        return apply("select", [condition, read, number(0)], span)

    def gather(self, node: Expression, extent: int, name: str, position: int, path: Path) -> Expr:
        """A subscript that reads tensors: checked ahead when only arguments are read, else clamped, with a flag checked at the end."""
        if not any(isinstance(n, Subscript | Reducer) for n in nodes(node)):
            needs_affine(node, self.names, role=f"subscript {position} of {name}")
        index = self.value(node, path)
        if not index.dtype.is_integer:
            raise DTypeError(
                f"subscript {position} of {name} has dtype {index.dtype}, and only integers can be subscripts",
                span=node.span,
            )
        if extent == 0 and not path.scope.points().is_empty():
            raise BoundsError(f"dimension {position} of {name} is empty, so no subscript is in bounds", span=node.span)
        wide = cast(index.expr, i64)
        if index.dtype.kind == "u" and index.dtype.bits < 32 and extent >= 1 << index.dtype.bits:
            return index.expr
        outside = Apply("or", (_compare("lt", wide, 0), _compare("ge", wide, extent)), boolean)
        message = f"an index into dimension {position} of {name} (extent {extent}) is out of range"
        reads = [n for e in (wide, *path.data) for n in walk(e) if isinstance(n, Read)]
        if all(read.tensor in self.state.inputs for read in reads):
            self.check_ahead(outside, path, message, node.span)
            return index.expr
        self.check_late(outside, path, message, node.span)
        capped = Apply("min", (wide, Const(max(0, extent - 1), i64)), i64)
        return Apply("max", (capped, Const(0, i64)), i64)

    # -- checks ---------------------------------------------------------------------------------------------------

    def check_ahead(self, outside: Expr, path: Path, message: str, span: Span) -> None:
        """A bool Equation over all instances (of enclosing loops too), and its Check, before all other ops."""
        state = self.state
        sizes = [r for r in path.scope.outer if r.name in state.sizes]
        loops = [r for r in path.scope.outer if r.name not in state.sizes]
        flat = Scope(tuple(sizes), (*loops, *path.scope.indices), path.scope.conditions)
        flag = state.tensor("out_of_range", boolean, (), message)
        state.ahead.append(_any(flag, outside, flat, path.data, None, span))
        state.ahead.append(Check(flag=flag, error="IndexError", message=message, span=span))

    def check_late(self, outside: Expr, path: Path, message: str, span: Span) -> None:
        """A bool Equation here, carried out of all enclosing loops; the Check stands at the end."""
        state = self.state
        flag = Flag([], message, span)
        if len(state.frames) == 1:
            result = state.tensor("out_of_range", boolean, (), message)
            state.emit(_any(result, outside, path.scope, path.data, None, span))
            flag.tensors.append(result)
        else:
            first = state.tensor("out_of_range", boolean, (), message)
            state.frames[0].ops.append(fill(first, Const(False, boolean), span))
            flag.tensors.append(first)
            for frame in state.frames[1:]:
                inner = state.tensor("out_of_range", boolean, (), message)
                frame.flags[len(state.flags)] = (flag.tensors[-1], inner)
                flag.tensors.append(inner)
            result = state.tensor("out_of_range", boolean, (), message)
            state.emit(_any(result, outside, path.scope, path.data, flag.tensors[-1], span))
            flag.tensors[-1] = result
        state.flags.append(flag)

    # -- reducers -------------------------------------------------------------------------------------------------

    def reduction(self, node: Reducer, path: Path) -> Reduction:
        """A reducer's parts; its conditions, and zeros that a sum may skip, restrict its points.

        Raises:
            ShapeError: nothing to reduce for max, min, argmax, argmin. DTypeError: a sum of narrow integers.
        """
        bound = [item.name for item in node.items if isinstance(item, IndexRef)]
        ranges = [self.ranges[name] for name in bound]
        inner = replace(path, scope=path.scope.bind(ranges))
        for item in node.items:
            if isinstance(item, IndexRef):
                continue
            condition = constraint_of(item, self.names)
            if condition is None:
                raise NotAffineError("a reducer's condition must be affine in indices and sizes", span=item.span,
                                     hint="put a condition on data into the body: where(condition, .., 0)")  # fmt: skip
            inner = inner.within(condition)
        names = {r.name for r in ranges}
        if node.implied:
            inner = inner.within(*(c for c in self.extra if c.names & names))
        body_node = node.body
        if node.kind == "sum":
            body_node, skipped = self.nonzero(node.body)
            inner = inner.within(*skipped)
        if node.kind in ("max", "min", "argmax", "argmin"):
            prove_not_empty(path.scope, inner.scope, kind=node.kind, span=node.span)
        body = self.value(body_node, inner)
        if node.kind in ("sum", "prod") and is_narrow(body.dtype):
            raise DTypeError(
                f"{node.kind} over {body.dtype} would wrap",
                span=node.span,
                hint=f"widen the terms, e.g. {node.kind}[..](i32(..)), or i64(..)",
            )
        if node.kind in ("sum", "prod") and body.dtype == boolean:
            body = Typed(cast(body.expr, i64), body.weak)
        if node.kind in ("any", "all"):
            body = Typed(cast(body.expr, boolean), body.weak)
        return Reduction(node.kind, path, inner, tuple(r.name for r in ranges), body, node.span)

    def nonzero(self, node: Expression) -> tuple[Expression, list[Constraint]]:
        """A sum's body without the `where(inside, e, 0)` factors, and the conditions outside which its terms are zeros (`pad` too)."""
        match node:
            case Binary(op="*"):
                left, first = self.nonzero(node.left)
                right, second = self.nonzero(node.right)
                changed = left is not node.left or right is not node.right
                return (replace(node, left=left, right=right) if changed else node), [*first, *second]
            case Binary(op="/"):
                left, first = self.nonzero(node.left)
                return (replace(node, left=left) if left is not node.left else node), first
            case Unary(op="-"):
                operand, first = self.nonzero(node.operand)
                return (replace(node, operand=operand) if operand is not node.operand else node), first
            case Call(function="where", args=(test, chosen, Number(value=0))):
                condition = constraint_of(test, self.names)
                return (node, []) if condition is None else (chosen, [condition])
            case Subscript(tensor=Pad() as pad):
                extents = self.state.lookup(pad.tensor, node.span).shape
                found = []
                for s, extent, (before, after) in zip(
                    node.subscripts, extents, pad_widths(pad, self.names), strict=True
                ):
                    value = to_affine(s, self.names)
                    if value is not None and (before or after):
                        found.append(_inside(value - before, extent))
                return node, found
            case _:
                return node, []

    def nested(self, reduction: Reduction) -> Typed:
        """The reduction as a tensor of its own over exactly the outer indices that it uses; an access to it."""
        free = reduction.free()
        names = [r.name for r in free]
        shape = []
        for r in free:
            if r.high is None:
                raise UnboundedDomainError(
                    f"the extent of {r.name} is not known at compile time, and {reduction.kind}[..] inside needs one per value",
                    span=reduction.span,
                    hint="bound the index by a number or by the shape of an argument",
                )
            shape.append(r.high)
        wish = f"{self.label}_{reduction.kind}"
        result = self.state.tensor(wish, reduction.result, shape, f"{self.label}.{reduction.kind}")
        domain = reduction.inner.scope.domain(result.name, [*names, *reduction.bound])
        target = tuple(affine(name) for name in names)
        self.state.emit(
            Equation(
                result=result,
                indices=(*names, *reduction.bound),
                domain=domain,
                target=target,
                body=reduction.body.expr,
                reduce=reduction.kind,
                reduced=reduction.bound,
                span=reduction.span,
            )
        )
        return Typed(Read(result.name, target, result.dtype), reduction.weak)


def image(subscripts: Sequence[GraphSubscript], variable: Variable, scope: Scope) -> isl.Set:
    """`[outer] -> { [elements] }` that the instances of the scope touch; a gather touches its whole dimension."""
    elements = [f"e{d}" for d in range(len(subscripts))]
    limits = [
        f"{e} = {s.isl_text()}" if isinstance(s, Affine) else f"0 <= {e} < {extent}"
        for e, s, extent in zip(elements, subscripts, variable.shape, strict=True)
    ]
    return scope.image(elements, limits)


def has_idle_instances(reduction: Reduction) -> bool:
    """True when some outer point has nothing to reduce."""
    lacking = points_without_items(reduction.outer.scope, reduction.inner.scope)
    return lacking is not None and not lacking.is_empty()


def fill(result: Tensor, value: Expr, span: Span | None) -> Equation:
    """Every element of `result` is `value`."""
    names = [f"i{d}" for d in range(len(result.shape))]
    ranges = tuple(
        Range(n, f"0 <= {n} < {e.isl_text()}", 0, None, False) for n, e in zip(names, result.shape, strict=True)
    )
    return Equation(
        result=result,
        indices=tuple(names),
        domain=Scope((), ranges).domain(result.name, names),
        target=tuple(affine(n) for n in names),
        body=value,
        span=span,
    )


def _any(flag: Tensor, outside: Expr, scope: Scope, data: Sequence[Expr], base: Tensor | None, span: Span) -> Equation:
    """`flag = base or any over the scope of outside`, where the conditions on data hold."""
    body = outside
    for condition in reversed(data):
        body = Apply("select", (condition, body, Const(False, boolean)), boolean)
    used = variables_of(body)
    names = [r.name for r in scope.indices if r.name in used]
    return Equation(
        result=flag,
        indices=tuple(names),
        domain=scope.domain(flag.name, names),
        target=(),
        body=body,
        reduce="any",
        reduced=tuple(names),
        accumulate=base is not None,
        base=base,
        span=span,
    )


def _index_value(value: Affine) -> Typed:
    return number(value.constant) if value.is_constant else Typed(IndexValue(value, i64), True)


def _fold(op: str, values: Sequence[Typed], span: Span) -> Typed:
    total = values[0]
    for value in values[1:]:
        total = apply(op, [total, value], span)
    return total


def _converted(value: Typed, dtype: DType, span: Span) -> Expr:
    """An explicit conversion: floats to integers truncate, as in NumPy."""
    expr = value.expr
    if isinstance(expr, Const) and isinstance(expr.value, float) and dtype.is_integer and expr.value == expr.value:
        expr = Const(int(expr.value), i64) if abs(expr.value) < 2**63 else expr
    return cast(expr, dtype, span)


def _compare(op: str, value: Expr, bound: int) -> Expr:
    return Apply(op, (value, Const(bound, i64)), boolean)


def _inside(value: Affine, extent: int) -> Constraint:
    return Constraint(f"0 <= {value.isl_text()} < {extent}", value.variables())


def _inside_test(value: Affine, extent: int) -> list[Typed]:
    index = _index_value(value)
    return [apply("ge", [index, number(0)]), apply("lt", [index, number(extent)])]

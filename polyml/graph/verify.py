"""The Graph's invariants, checked at stage borders: SSA, types, domains, bounds, what loops carry.

A graph that fails was built or rewritten wrongly (user faults were reported before there was a graph), so everything here is an assertion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import assert_never

import islpy as isl

from polyml.dtypes import DType, boolean
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.graph.elements import are_apart
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.ops import INDEX_DTYPE, OPS, REDUCTIONS, result_dtype
from polyml.records import dataclass
from polyml.sets.affine import Affine, between
from polyml.sets.affine_conditions import condition_text
from polyml.sets.spaces import parameters_text

__all__ = ["verify"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEYWORDS = frozenset("and or not exists min max mod floor ceil rat true false infty nan implies let".split())


def verify(graph: Graph, *, bounds: bool = True) -> None:
    """Raises AssertionError when the graph is not well formed.

    Args:
        bounds: also prove by isl that every affine access stays in its tensor, on its domain and `select` path.
    """
    scope = _Scope({}, set(), graph.sizes, (), graph.context, bounds)
    for item in graph.inputs:
        scope.define(item.tensor)
    _block(graph.ops, scope)
    for tensor in graph.outputs:
        scope.use(tensor)
    for item in graph.inputs:
        assert item.written == (item.final is not None), (
            f"internal: {item.tensor.name} is written without a final value"
        )
        if item.final is not None:
            scope.use(item.final)
            _same_type(item.tensor, item.final)


@dataclass(slots=True)
class _Scope:
    """What is visible: tensors by name, all names ever used, parameters, loop variables, and what is known of both."""

    tensors: dict[str, Tensor]
    names: set[str]
    sizes: tuple[str, ...]
    variables: tuple[str, ...]
    context: isl.Set
    bounds: bool

    def define(self, tensor: Tensor) -> None:
        name = tensor.name
        _check_name(name)
        assert name not in self.names, f"internal: tensor {name} is made twice"
        self.names.add(name)
        self.tensors[name] = tensor
        known = set(self.sizes)
        assert all(extent.variables() <= known for extent in tensor.shape), f"internal: the shape of {name} is unknown"

    def use(self, tensor: Tensor) -> None:
        assert self.tensors.get(tensor.name) == tensor, f"internal: {tensor.name} is used where it does not exist"

    def inside(self, loop: Loop) -> _Scope:
        v, step = loop.variable, loop.step
        first, last = (loop.start, loop.stop) if step > 0 else (loop.stop + 1, loop.start + 1)
        limits = between(v, first, last)
        if abs(step) != 1:
            limits += f" and ({v} - ({loop.start.isl_text()})) mod {abs(step)} = 0"
        parameters = (*self.sizes, *self.variables, v)
        known = isl.Set(f"[{', '.join(parameters)}] -> {{ : {limits} }}").intersect(self.context)
        return _Scope(dict(self.tensors), self.names, self.sizes, (*self.variables, v), known, self.bounds)


def _block(ops: Iterable[Op], scope: _Scope) -> None:
    for op in ops:
        match op:
            case Equation():
                _equation(op, scope)
            case Loop():
                _loop(op, scope)
            case Check():
                scope.use(op.flag)
                assert op.flag.dtype == boolean, f"internal: the flag {op.flag.name} is no bool"
                assert not op.flag.shape, f"internal: the flag {op.flag.name} is no scalar"
                assert not scope.variables, f"internal: a check of {op.flag.name} inside a loop"
            case _:
                assert_never(op)


def _loop(loop: Loop, scope: _Scope) -> None:
    v = loop.variable
    _check_name(v)
    assert v not in (*scope.sizes, *scope.variables), f"internal: loop variable {v} hides another name"
    assert loop.step != 0, f"internal: loop over {v} has step 0"
    inside = scope.inside(loop)
    for carried in loop.carried:
        scope.use(carried.initial)
        inside.define(carried.inner)
    _block(loop.body, inside)
    for carried in loop.carried:
        inside.use(carried.next)
        for tensor in (carried.inner, carried.next, carried.result):
            _same_type(carried.initial, tensor)
        scope.define(carried.result)


def _equation(eq: Equation, scope: _Scope) -> None:
    name = eq.result.name
    _indices(eq, scope)
    assert len(eq.target) == len(eq.result.shape), f"internal: the left side of {name} has the wrong rank"
    left = frozenset(eq.left)
    known = frozenset((*scope.sizes, *scope.variables))
    if eq.base is not None:
        scope.use(eq.base)
        _same_type(eq.base, eq.result)
    if eq.only_if is not None:
        scope.use(eq.only_if)
        assert (eq.only_if.dtype, eq.only_if.shape) == (boolean, ()), f"internal: the flag of {name} is no bool alone"
        assert eq.base is not None, f"internal: {name} has no base where its flag is not set"
        assert not eq.accumulate, f"internal: {name} accumulates, if its flag is set"
    assert not eq.accumulate or (eq.base is not None and eq.reduce is not None), (
        f"internal: {name} accumulates from nothing"
    )
    assert eq.reduce is not None or not eq.reduced, f"internal: {name} has reduced indices but no reduction"
    assert eq.reduce is None or eq.reduce in REDUCTIONS, f"internal: {name} is reduced by {eq.reduce}"
    if eq.reduce in ("argmax", "argmin"):
        assert eq.result.dtype == INDEX_DTYPE, f"internal: {name} holds indices as {eq.result.dtype}"
        assert len(eq.reduced) == 1, f"internal: {name} is the argmax over {len(eq.reduced)} indices"
    else:
        assert eq.body.dtype == eq.result.dtype, f"internal: {name} is {eq.result.dtype}, its value {eq.body.dtype}"
    if not eq.accumulate:
        assert _is_injective(eq), f"internal: several instances of {name} hit one element"
    places = _Access(name, eq, scope)
    places.subscripts(eq.result, eq.target, left | known, ())
    places.expression(eq.body, frozenset(eq.indices) | known, ())
    scope.define(eq.result)


def _indices(eq: Equation, scope: _Scope) -> None:
    """Indices, domain and instances agree."""
    name = eq.result.name
    for index in eq.indices:
        _check_name(index)
        assert index not in (*scope.sizes, *scope.variables), f"internal: index {index} of {name} hides another name"
    assert len(set(eq.indices)) == len(eq.indices), f"internal: {name} has an index twice"
    count = len(eq.left)
    assert eq.indices[count:] == eq.reduced, f"internal: reduced indices of {name} do not come last"
    for points, rank in ((eq.domain, len(eq.indices)), (eq.instances, count)):
        if points is None:
            continue
        tuple_name = points.get_tuple_name() if points.has_tuple_name() else None
        assert tuple_name == name, f"internal: the domain of {name} is named {tuple_name}"
        assert points.dim(isl.dim_type.set) == rank, f"internal: the domain of {name} has the wrong rank"
        parameters = {points.get_dim_name(isl.dim_type.param, d) for d in range(points.dim(isl.dim_type.param))}
        assert parameters <= {*scope.sizes, *scope.variables}, f"internal: {name} is over unknown {parameters}"


def _is_injective(eq: Equation) -> bool:
    """True when no two left-side points have one target."""
    points = eq.domain.project_out(isl.dim_type.set, len(eq.left), len(eq.reduced))
    return are_apart(points, eq.left, [s for s in eq.target if isinstance(s, Affine)])


def _check_name(name: str) -> None:
    fit = _IDENTIFIER.match(name) is not None and name.lower() not in _KEYWORDS
    assert fit, f"internal: {name!r} is no name for isl"


def _same_type(one: Tensor, other: Tensor) -> None:
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    assert same, f"internal: {one.name} and {other.name} differ in dtype or shape"


@dataclass(frozen=True, slots=True)
class _Access:
    """Checks the expressions of one equation."""

    name: str
    equation: Equation
    scope: _Scope

    def expression(self, expr: Expr, known: frozenset[str], path: tuple[str, ...]) -> None:
        """`known`: variables that may occur; `path`: the affine conditions under which the expression is evaluated, as isl text."""
        match expr:
            case Const():
                pass
            case IndexValue():
                assert expr.affine.variables() <= known, f"internal: {self.name} uses unknown names in {expr}"
            case Read():
                tensor = self.scope.tensors.get(expr.tensor)
                assert tensor is not None, f"internal: {self.name} reads {expr.tensor}, which does not exist there"
                assert tensor.dtype == expr.dtype, f"internal: {self.name} reads {tensor.dtype} as {expr.dtype}"
                self.subscripts(tensor, expr.subscripts, known, path)
            case Apply(op="select"):
                condition, yes, no = expr.args
                self.expression(condition, known, path)
                self.expression(yes, known, (*path, *_texts(condition_text(condition))))
                self.expression(no, known, (*path, *_texts(condition_text(condition, negated=True))))
                _check_dtype(self.name, expr)
            case Apply():
                for arg in expr.args:
                    self.expression(arg, known, path)
                _check_dtype(self.name, expr)
            case _:
                assert_never(expr)

    def subscripts(
        self, tensor: Tensor, subscripts: Sequence[Subscript], known: frozenset[str], path: tuple[str, ...]
    ) -> None:
        assert len(subscripts) == len(tensor.shape), f"internal: {self.name} accesses {tensor.name} with a wrong rank"
        for subscript, extent in zip(subscripts, tensor.shape, strict=True):
            if not isinstance(subscript, Affine):
                assert subscript.dtype.is_integer, f"internal: {self.name} gathers by {subscript.dtype}"
                self.expression(subscript, known, path)
                continue
            assert subscript.variables() <= known, f"internal: {self.name} uses unknown names in {subscript}"
            if self.scope.bounds:
                self.in_bounds(tensor, subscript, extent, path)

    def in_bounds(self, tensor: Tensor, subscript: Affine, extent: Affine, path: tuple[str, ...]) -> None:
        eq = self.equation
        if subscript.is_constant and extent.is_constant and 0 <= subscript.constant < extent.constant:
            return
        text = subscript.isl_text()
        outside = " and ".join((f"({text} < 0 or {text} >= {extent.isl_text()})", *path))
        head = parameters_text((*self.scope.sizes, *self.scope.variables))
        leaving = isl.Set(f"{head}{{ {self.name}[{', '.join(eq.indices)}] : {outside} }}")
        witness = leaving.intersect(eq.domain).intersect_params(self.scope.context)
        assert witness.is_empty(), (
            f"internal: {self.name} accesses {tensor.name} at {subscript} out of bounds: {witness}"
        )


def _texts(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


def _check_dtype(name: str, expr: Apply) -> None:
    assert expr.op in OPS, f"internal: {name} applies {expr.op}"
    op = OPS[expr.op]
    assert len(expr.args) == op.arity, f"internal: {name} applies {expr.op} to {len(expr.args)} arguments"
    if op.rule == "cast":
        return
    values = expr.args[1:] if op.rule == "select" else expr.args
    dtypes = {arg.dtype for arg in values}
    assert len(dtypes) == 1, f"internal: {name} applies {expr.op} to {', '.join(sorted(map(str, dtypes)))}"
    expected: DType = result_dtype(expr.op, next(iter(dtypes)))
    assert expr.dtype == expected, f"internal: {name} takes {expr.op} to be {expr.dtype}, not {expected}"

"""Expressions to Values: scalar where nothing differs between lanes, else a vector."""

from __future__ import annotations

from typing import assert_never

from polyml.codegen.llvm.adders import add_by_product
from polyml.codegen.llvm.arithmetic import ARITHMETIC, cast, multiply_add
from polyml.codegen.llvm.extremum_trees import extremum
from polyml.codegen.llvm.functions_once import is_place
from polyml.codegen.llvm.half import half_constant
from polyml.codegen.llvm.ir import Lines, Value, constant, type_of
from polyml.codegen.llvm.masks import lanes_where
from polyml.codegen.llvm.math import MATH, sine_and_cosine, vector_math
from polyml.codegen.llvm.math.quotient import divide_by_one, parts_of, pays
from polyml.codegen.llvm.memory.inside import is_inside
from polyml.codegen.llvm.memory.known_elements import is_known
from polyml.codegen.llvm.memory.loads import load, load_part
from polyml.codegen.llvm.pairs import dot_of_pairs, pair
from polyml.codegen.llvm.power import float_power, integer_power
from polyml.codegen.llvm.state import State
from polyml.dtypes import DType, f32, f64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, reads_of, walk
from polyml.sets.affine import Affine, FloorDiv

__all__ = ["EMITTED", "evaluate", "product_factors"]

EMITTED: frozenset[str] = frozenset(
    {
        "select",
        "cast",
        "pow",
        "real",
        "imag",
        "complex",
        "pair_bf16",
        "dot_bf16",
        "pair_i16",
        "dot_i16",
        "quad_i8",
        "dot_i8",
        *ARITHMETIC,
        *MATH,
    }
)
"""The ops that `evaluate` knows."""


def evaluate(state: State, expr: Expr) -> Value:
    """The value of the expression for the lanes that act; what other lanes hold is arbitrary."""
    if state.held and isinstance(expr, Apply | Read) and expr in state.held:
        return state.held[expr]
    match expr:
        case Const() if expr.dtype.is_half:
            return half_constant(state.builder, float(expr.value), expr.dtype)
        case Const():
            return constant(type_of(expr.dtype), expr.value)
        case IndexValue():
            return _index_value(state, expr)
        case Read():
            return load(state, expr.tensor, expr.subscripts, evaluate)
        case Apply(op="select"):
            return _select(state, expr)
        case Apply(op="real" | "imag", args=(Read() as read,)):
            return load_part(state, read.tensor, read.subscripts, evaluate, expr.op == "imag")
        case Apply(op="pair_bf16" | "pair_i16" | "quad_i8"):
            return pair(state, expr, evaluate)
        case Apply(op=op) if op in MATH or is_place(expr):
            return _function(state, expr)
        case Apply(op="add" | "sub"):
            return _sum(state, expr)
        case Apply(op="div"):
            return _quotient(state, expr)
        case Apply(op="min" | "max") if expr.dtype.is_float and state.builder.module.instructions.nan_is_dear:
            return _extremum(state, expr)
        case Apply(op="lt" | "le" | "gt" | "ge") if (value := lanes_where(state, expr)) is not None:
            return value
        case Apply():
            args = _same_lanes(state, tuple(evaluate(state, arg) for arg in expr.args))
            return _apply(state, expr, args)
        case _:
            assert_never(expr)


def _apply(state: State, expr: Apply, args: tuple[Value, ...]) -> Value:
    b, dtype = state.builder, expr.args[0].dtype
    match expr.op:
        case "cast":
            return cast(b, args[0], dtype, expr.dtype)
        case "pow":
            exponent = expr.args[1].value if isinstance(expr.args[1], Const) else None
            if dtype.is_float:
                return float_power(b, args[0], args[1], exponent, precise=state.precise)
            return integer_power(b, args[0], args[1], exponent)
        case "real" | "imag":
            return b.part_of(args[0], int(expr.op == "imag"))
        case "dot_bf16" | "dot_i16" | "dot_i8":
            return dot_of_pairs(b, expr.op, args[0], args[1], constant(type_of(expr.dtype, args[0].lanes), 0))
        case "complex":
            return b.paired(args[0], args[1], expr.dtype.name)
        case op if op in ARITHMETIC:
            return ARITHMETIC[op](b, args, dtype)
        case op:
            return vector_math(b, op, *(cast(b, arg, dtype, expr.dtype) for arg in args))


def _function(state: State, expr: Apply) -> Value:
    """A function's value, which an assignment computes once."""
    once, b = state.functions, state.builder
    if once is None:
        return _apply(state, expr, _arguments(state, expr))
    found = once.find(expr, state.lanes)
    if found is not None:
        return found
    args = _arguments(state, expr)
    if once.is_one_of_both(expr):
        return once.keep_both(expr, state.lanes, *sine_and_cosine(b, cast(b, args[0], expr.args[0].dtype, expr.dtype)))
    return once.keep(expr, state.lanes, _apply(state, expr, args))


def _arguments(state: State, expr: Apply) -> tuple[Value, ...]:
    match expr:
        case Apply(op="exp", args=(Apply(op="sub", args=(left, right)),), dtype=dtype) if dtype in (f32, f64) and (
            isinstance(left, Read) or isinstance(right, Read)
        ):
            return (_rounded_difference(state, left, right),)
        case _:
            return _same_lanes(state, tuple(evaluate(state, arg) for arg in expr.args))


def _index_value(state: State, expr: IndexValue) -> Value:
    variable = "" if state.lanes is None else state.lanes.variable
    value = state.nest.lanes_index(expr.affine, variable, state.width) if variable else state.nest.index(expr.affine)
    return cast(state.builder, value, _I64, expr.dtype)


_I64 = DType("i64", "i", 64)


def _same_lanes(state: State, args: tuple[Value, ...]) -> tuple[Value, ...]:
    lanes = max((a.lanes for a in args), default=1)
    return tuple(state.builder.splat(a, lanes) for a in args)


def product_factors(state: State, expr: Expr) -> tuple[Expr, Expr] | None:
    """The two factors when the expression is a product of floats that may be fused into a sum."""
    if not state.precise and isinstance(expr, Apply) and expr.op == "mul" and expr.dtype.is_float:
        return expr.args[0], expr.args[1]
    return None


def _sum(state: State, expr: Apply) -> Value:
    """add and sub, with a product in an argument fused: a*b + c, a*b - c, c - a*b."""
    b = state.builder
    left, right = expr.args
    if (factors := product_factors(state, left)) is not None:
        x, y, z = _same_lanes(state, (evaluate(state, factors[0]), evaluate(state, factors[1]), evaluate(state, right)))
        return multiply_add(b, x, y, z if expr.op == "add" else b.emit(z.type, f"fneg {z}"))
    if (factors := product_factors(state, right)) is not None:
        z, x, y = _same_lanes(state, (evaluate(state, left), evaluate(state, factors[0]), evaluate(state, factors[1])))
        return multiply_add(b, x if expr.op == "add" else b.emit(x.type, f"fneg {x}"), y, z)
    args = _same_lanes(state, (evaluate(state, left), evaluate(state, right)))
    if args[0].lanes > 1 and expr in state.multiplied:
        return add_by_product(state, args[0], args[1] if expr.op == "add" else b.emit(args[1].type, f"fneg {args[1]}"))
    return ARITHMETIC[expr.op](b, args, left.dtype)


def _extremum(state: State, expr: Apply) -> Value:
    """A minimum or maximum of floats, with those that its operands are."""
    leaves: dict[Expr, Value] = {}
    stack: list[Expr] = [*reversed(expr.args)]
    while stack:
        part = stack.pop()
        if (
            isinstance(part, Apply)
            and part.op in ("min", "max")
            and part.dtype == expr.dtype
            and part not in state.held
        ):
            stack += reversed(part.args)
        elif part not in leaves:
            leaves[part] = evaluate(state, part)
    lanes = max(value.lanes for value in leaves.values())
    return extremum(state.builder, expr, lanes, leaves)


def _rounded_difference(state: State, left: Expr, right: Expr) -> Value:
    """left - right of rounded products, as of scores less their maximum in a softmax: fused, the largest is above zero by its rounding, which may be more than exp has room for."""
    args = _same_lanes(state, (evaluate(state, left), evaluate(state, right)))
    return state.builder.binary("fsub", *args)


def _quotient(state: State, expr: Apply) -> Value:
    """A division; one by the same number in all lanes has a faster form in wide vectors."""
    x, divisor = (evaluate(state, arg) for arg in expr.args)
    if divisor.lanes == 1 and expr.args[1] in state.reciprocals:
        reciprocal = state.reciprocals[expr.args[1]]
        if reciprocal is not None:
            return divide_by_one(state.builder, x, reciprocal)
    elif divisor.lanes == 1 and pays(state.builder, x.type.bits, x.lanes, None):
        return divide_by_one(state.builder, x, parts_of(state.builder, divisor))
    return ARITHMETIC["div"](state.builder, _same_lanes(state, (x, divisor)), expr.args[0].dtype)


def _select(state: State, expr: Apply) -> Value:
    """The chosen value; reads of the other one do not happen: lanes are masked, scalars branch. Lanes of a condition on values read both: no proof that an element is there rests on such a condition."""
    b = state.builder
    condition_expr, if_true, if_false = expr.args
    condition = cast(b, evaluate(state, condition_expr), condition_expr.dtype, _BOOLEAN)
    by_values = condition.lanes > 1 and not any(isinstance(node, IndexValue) for node in walk(condition_expr))
    alternates = condition.lanes > 1 and _alternates(state, condition_expr)
    guards = [_needs_guard(state, arm, by_values, alternates) for arm in (if_true, if_false)]
    if not any(guards):
        chosen = _same_lanes(state, (evaluate(state, if_true), evaluate(state, if_false)))
    elif condition.lanes == 1:
        return _branch(state, condition, if_true, if_false)
    else:
        narrowed = state.where(condition) if guards[0] else state.lanes
        with state.within(narrowed):
            first = evaluate(state, if_true)
        narrowed = state.where(b.negate(condition)) if guards[1] else state.lanes
        with state.within(narrowed):
            second = evaluate(state, if_false)
        chosen = _same_lanes(state, (first, second))
    lanes = max(condition.lanes, chosen[0].lanes)
    a, c = b.splat(chosen[0], lanes), b.splat(chosen[1], lanes)
    return b.select(condition, a, c)


_BOOLEAN = DType("bool", "b", 8)


def _alternates(state: State, condition: Expr) -> bool:
    """Whether the condition holds for some lanes of each vector, as far as one can see: it is about remainders of their variable."""
    lanes = state.lanes
    affines = [node.affine for node in walk(condition) if isinstance(node, IndexValue)]
    atoms = (atom for value in affines for atom, _ in value.terms if isinstance(atom, FloorDiv))
    return lanes is not None and any(
        atom.denominator <= lanes.width and lanes.variable in atom.variables() for atom in atoms
    )


def _needs_guard(state: State, expr: Expr, by_values: bool, alternates: bool) -> bool:
    """Whether it reads memory that has not just been read for the same lanes anyway. by_values: elements at computed places only; alternates: those that may not be there."""

    def guarded(read: Read) -> bool:
        if not read.subscripts:
            return False  # a number is there whatever the condition says, and a jump may be guessed wrong
        if alternates and is_inside(state, read.tensor, read.subscripts):
            return False
        return not (by_values and all(isinstance(subscript, Affine) for subscript in read.subscripts))

    return any(guarded(read) and not is_known(state, read.tensor, read.subscripts) for read in reads_of(expr))


def _branch(state: State, condition: Value, if_true: Expr, if_false: Expr) -> Value:
    b = state.builder
    then, otherwise, after = b.fresh("then"), b.fresh("else"), b.fresh("chosen")
    b.branch(condition, then, otherwise)
    ends: list[tuple[Value, Lines, str]] = []
    for label, branch in ((then, if_true), (otherwise, if_false)):
        lines: Lines = []
        b.lines.append(lines)
        with b.into(lines):
            b.start(label)
            value = evaluate(state, branch)
        ends.append((value, lines, b.block))
    lanes = max(value.lanes for value, _, _ in ends)
    incoming = []
    for value, lines, block in ends:
        with b.into(lines):
            value = b.splat(value, lanes)
            b.jump(after)
        incoming.append(f"[{value.text}, %{block}]")
    b.start(after)
    type_ = type_of(value.type.element, lanes)
    return b.emit(type_, f"phi {type_} {', '.join(incoming)}")

"""Surface expressions as index arithmetic: quasi-affine subscripts and bounds, and conditions as integer-set constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from polyml.einsum_frontend.printer import format_expression
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Number,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import walk as nodes
from polyml.errors import NotAffineError
from polyml.records import dataclass
from polyml.sets.affine import Affine, FloorDiv, affine, combine, maximum, minimum, operands

__all__ = [
    "Constraint",
    "Names",
    "constraint_of",
    "necessary",
    "needs_affine",
    "needs_bounds",
    "nodes",
    "reads_tensor",
    "size_of",
    "to_affine",
    "why_not_affine",
]

_ISL_COMPARE = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "==": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Names:
    """What sizes, loop variables and indices of the program text stand for: numbers, or variables that are isl identifiers."""

    sizes: Mapping[str, Affine]
    loops: Mapping[str, Affine]
    indices: Mapping[str, Affine]


@dataclass(frozen=True, slots=True)
class Constraint:
    """An affine condition as an isl constraint over the variables `names`."""

    text: str
    names: frozenset[str]

    def negated(self) -> Constraint:
        return Constraint(f"not ({self.text})", self.names)


def reads_tensor(node: Expression) -> bool:
    """True when the value depends on tensors (so it is no index arithmetic)."""
    return any(isinstance(n, Subscript | Reducer | Call) for n in nodes(node))


def to_affine(node: Expression, names: Names) -> Affine | None:
    """The quasi-affine form of an integer expression; None when it has none (it reads a tensor, multiplies indices, ...)."""
    match node:
        case IndexRef():
            return names.indices.get(node.name) or affine(node.name)
        case LoopRef():
            return names.loops[node.name]
        case SizeRef():
            return names.sizes[node.name]
        case Number():
            return affine(node.value) if isinstance(node.value, int) and not isinstance(node.value, bool) else None
        case Unary(op="-"):
            operand = to_affine(node.operand, names)
            return None if operand is None else -operand
        case Binary():
            # The right side first: of a sum of elements it has one term, while the left one has all others, and each of these sums is asked.
            right = to_affine(node.right, names)
            left = None if right is None else to_affine(node.left, names)
            return None if left is None or right is None else combine(node.op, left, right)
        case _:
            return None


def size_of(entry: Expression) -> tuple[str, int, int] | None:
    """(P, c, d) where an entry of a shape is `c*P + d` of the size P alone, c >= 1: its extent gives the size. Else None."""
    sizes = {n.name: affine(n.name) for n in nodes(entry) if isinstance(n, SizeRef)}
    form = to_affine(entry, Names(sizes, {}, {}))
    return None if form is None else form.of_one


def needs_affine(node: Expression, names: Names, *, role: str) -> Affine:
    """`to_affine`, refusing what is not.

    Raises:
        NotAffineError: naming `role` ("a loop bound").
    """
    found = to_affine(node, names)
    if found is None:
        why, part = why_not_affine(node, names)
        raise NotAffineError(
            f"{role} must be affine in indices, loop variables and sizes, but this one {why}",
            span=part.span,
            hint="sums of integer multiples, `// c` and `% c` by positive numbers are affine; products of indices are not",
        )
    return found


def why_not_affine(node: Expression, names: Names) -> tuple[str, Expression]:
    """What is wrong with an expression that has no quasi-affine form, with values of sizes, and with which part of it."""
    for part in nodes(node):
        if not isinstance(part, Binary):
            continue
        left, right = to_affine(part.left, names), to_affine(part.right, names)
        if left is None or right is None or combine(part.op, left, right) is not None:
            continue
        by = format_expression(part.right)
        if part.op in ("//", "%"):
            value = f"{by}, which is {right}" if right.is_constant and by != str(right) else by
            known = "" if right.is_constant else ", whose value is not known here"
            return f"divides by {value}{known}", part
        if part.op == "*":
            return f"multiplies {format_expression(part.left)} by {by}, neither of which is a number", part
        if part.op == "**":
            return f"has the power {format_expression(part)}, which is no integer that is known", part
    return ("reads a tensor" if reads_tensor(node) else "is not quasi-affine"), node


def needs_bounds(start: Expression, stop: Expression, names: Names, *, step: int) -> tuple[Affine, Affine]:
    """The bounds of a loop. It may end before the smallest of several (at the largest, where it goes down), and one that goes on by 1 may begin at the largest: its range is convex.

    Raises:
        NotAffineError: a bound that is not affine, or another `min` or `max`.
    """
    ends: Literal["min", "max"] = "min" if step > 0 else "max"
    first, last = (_bound(node, names) or needs_affine(node, names, role="a loop bound") for node in (start, stop))
    if not all(map(_is_plain, operands(first, "max") if step == 1 else (first,))):
        hint = "write max(..) there, in steps of 1" if step > 0 else "what a loop that goes down begins with is affine"
        raise NotAffineError("a loop begins at more than one place", span=start.span, hint=hint)
    if not all(map(_is_plain, operands(last, ends))):
        hint = f"a loop that goes {'up' if step > 0 else 'down'} ends at {ends}(..)"
        raise NotAffineError("a loop ends at more than one place", span=stop.span, hint=hint)
    return first, last


def _bound(node: Expression, names: Names) -> Affine | None:
    """As `to_affine`, with `min` and `max` of such values."""
    match node:
        case Call(function="min" | "max" as kind):
            found = [_bound(arg, names) for arg in node.args]
            each = [operand for value in found if value is not None for operand in operands(value, kind)]
            return None if None in found else (minimum if kind == "min" else maximum)(each)
        case Unary(op="-"):
            operand = _bound(node.operand, names)
            return None if operand is None else -operand
        case Binary():
            left, right = _bound(node.left, names), _bound(node.right, names)
            return None if left is None or right is None else combine(node.op, left, right)
        case _:
            return to_affine(node, names)


def _is_plain(value: Affine) -> bool:
    """Whether no minimum or maximum is in it."""
    return all(
        isinstance(atom, str) or (isinstance(atom, FloorDiv) and _is_plain(atom.numerator)) for atom, _ in value.terms
    )


def constraint_of(node: Expression, names: Names) -> Constraint | None:
    """The condition as an isl constraint; None when some part of it is not affine."""
    match node:
        case Number():
            return Constraint("true" if node.value else "false", frozenset())
        case Unary(op="not"):
            inner = constraint_of(node.operand, names)
            return None if inner is None else inner.negated()
        case Boolean():
            parts = [constraint_of(operand, names) for operand in node.operands]
            found = [part for part in parts if part is not None]
            return _joined(node.op, found) if len(found) == len(parts) else None
        case Compare():
            values = [to_affine(operand, names) for operand in node.operands]
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                return None
            links = zip(known, node.ops, known[1:], strict=False)
            text = " and ".join(f"{a.isl_text()} {_ISL_COMPARE[op]} {b.isl_text()}" for a, op, b in links)
            return Constraint(text, frozenset().union(*(value.variables() for value in known)))
        case _:
            return None


def necessary(node: Expression, names: Names, truth: bool) -> Constraint | None:
    """What must hold among indices when the condition is `truth`, as far as that is affine (None: nothing is known)."""
    whole = constraint_of(node, names)
    if whole is not None:
        return whole if truth else whole.negated()
    match node:
        case Unary(op="not"):
            return necessary(node.operand, names, not truth)
        case Boolean():
            parts = [necessary(operand, names, truth) for operand in node.operands]
            known = [part for part in parts if part is not None]
            every = (node.op == "and") == truth  # all operands have this truth, rather than at least one of them
            return _joined("and" if every else "or", known) if known and (every or len(known) == len(parts)) else None
        case _:
            return None


def _joined(op: str, parts: Sequence[Constraint]) -> Constraint:
    text = f" {op} ".join(f"({part.text})" for part in parts)
    return Constraint(text, frozenset().union(*(part.names for part in parts)))

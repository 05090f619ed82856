"""Surface expressions as index arithmetic: quasi-affine subscripts and bounds, and conditions as integer-set constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from polyml.sets.affine import Affine, affine, combine

__all__ = [
    "Constraint",
    "Names",
    "constraint_of",
    "necessary",
    "needs_affine",
    "nodes",
    "reads_tensor",
    "to_affine",
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


def needs_affine(node: Expression, names: Names, *, role: str) -> Affine:
    """`to_affine`, refusing what is not.

    Raises:
        NotAffineError: naming `role` ("a loop bound").
    """
    found = to_affine(node, names)
    if found is None:
        why = "reads a tensor" if reads_tensor(node) else "is not quasi-affine"
        raise NotAffineError(
            f"{role} must be affine in indices, loop variables and sizes, but this one {why}",
            span=node.span,
            hint="sums of integer multiples, `// c` and `% c` by positive numbers are affine; products of indices are not",
        )
    return found


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

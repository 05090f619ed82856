"""Values that are made of several rows, which the lanes of a vector loop walk along: made along the rows, and transposed once.

    vector(8) for (i ..) for (j ..) .. a * x[i - 1, j] + b * x[i, j] - a * x[i + 1, j] ..

needs each element of x in three lanes, which are three transposes of nearly the same rows. With lanes along j the value is three loads and its arithmetic, and one transpose
(passes/transposes/transposed_strips.py) gives it to the lanes that want it. The operations and their order stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Variable
from polyml.codegen.passes.transposes.transposed_strips import Rows
from polyml.expressions import Apply, Const, Expr, Read, walk
from polyml.new_names import fresh
from polyml.sets.affine import affine

__all__ = ["LineOf", "values_of_rows"]

LineOf = Callable[[Read], Rows | None]
"""The rows that the read walks along; None where it does not."""


def values_of_rows(loop: For, line_of: LineOf, arguments: Set[str], taken: set[str]) -> tuple[For, tuple[Rows, ...]]:
    """The loop with reads in place of values that are made of two rows or more, and what they read: rows under new names, each with its value.

    Args:
        loop: an innermost one. arguments: of the function; those without dimensions are the same for all lanes. taken: names in use; the new ones are added.
    """
    if not all(isinstance(node, Assign) for node in loop.body):
        return loop, ()
    written = {node.target.variable for node in loop.body if isinstance(node, Assign)}
    found: dict[Expr, Rows] = {}
    for node in loop.body:
        if isinstance(node, Assign):
            for value in _largest(node.value, lambda e: _is_of_rows(e, line_of, arguments - written, written)):
                if value not in found:
                    found[value] = _rows(value, loop.variable, fresh(f"{loop.variable}_value", taken))
    if not found:
        return loop, ()
    instead = {value: Read(r.variable.name, (affine(loop.variable),), r.variable.dtype) for value, r in found.items()}
    body = tuple(
        replace(node, value=_replaced(node.value, instead)) if isinstance(node, Assign) else node for node in loop.body
    )
    return replace(loop, body=body), tuple(found.values())


def _rows(value: Expr, along: str, name: str) -> Rows:
    variable = Variable(name=name, dtype=value.dtype, shape=(affine(along),), scope="local")
    return Rows(variable, (affine(0),), 0, 1, frozenset({0}), frozenset({0}), None, value=value)


def _is_of_rows(expr: Expr, line_of: LineOf, numbers: Set[str], written: Set[str]) -> bool:
    """Whether it is made of elements of several rows, that nothing in the loop writes, and of numbers that are the same for all."""
    lines = set()
    for node in walk(expr):
        match node:
            case Const():
                pass
            case Apply(op=op) if op != "select":
                pass
            case Read(subscripts=()) if node.tensor in numbers:
                pass
            case Read() if node.tensor not in written and node.dtype == expr.dtype:
                rows = line_of(node)
                if rows is None or rows.sign != 1:
                    return False
                lines.add((node.tensor, rows.line))
            case _:
                return False
    return len(lines) > 1 and expr.dtype.is_float


def _largest(expr: Expr, wanted: Callable[[Expr], bool]) -> Iterator[Expr]:
    """The largest such parts of an expression, but for what a condition may leave out: elements beyond an end, perhaps."""
    if not isinstance(expr, Apply):
        return
    if wanted(expr):
        yield expr
        return
    for arg in expr.args[:1] if expr.op == "select" else expr.args:
        yield from _largest(arg, wanted)


def _replaced(expr: Expr, instead: dict[Expr, Read]) -> Expr:
    if expr in instead:
        return instead[expr]
    if not isinstance(expr, Apply):
        return expr
    return replace(expr, args=tuple(_replaced(arg, instead) for arg in expr.args))

"""What an innermost loop computes from elements that stay the same is computed ahead of it.

LLVM does so as well, but in the middle of passes that take five times as long as all others that the emitter's code needs (`machine.py`): they rotate loops, count them otherwise,
and do the rest several times over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.math.quotient import WIDE, parts_of
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, Block, For, Node, UpdateArgument
from polyml.codegen.rewrite import uses, walk_nodes
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.sets.affine import Affine

__all__ = ["compute_ahead", "unchanging"]


def unchanging(loop: For) -> list[Apply]:
    """The largest expressions, each once, that every iteration of the loop computes, whatever conditions in it say, with one value for all of them; and quotients by such a value.

    None for a loop with loops inside.
    """
    if any(isinstance(node, For) for node in walk_nodes(loop.body)):
        return []
    written = {use.variable for node in walk_nodes(loop.body) for use in uses(node) if use.write}
    found: dict[Apply, None] = {}
    for value in _values(loop.body):
        found.update(dict.fromkeys(_parts(value, loop.variable, written)))
    return list(found)


def compute_ahead(state: State, loop: For, found: Sequence[Apply]) -> None:
    """Writes their values, which the loop's body then takes: to be called where the loop is sure to have an iteration."""
    b = state.builder
    written = {use.variable for node in walk_nodes(loop.body) for use in uses(node) if use.write}
    for expr in found:
        if _stays(expr, loop.variable, written):
            state.held[expr] = evaluate(state, expr)
            continue
        divisor = expr.args[1]  # its reciprocal, in parts
        value = evaluate(state, divisor)
        if isinstance(divisor, Apply):
            state.held[divisor] = value
        if value.lanes == 1 and max(loop.width, state.width) * value.type.bits >= WIDE:
            state.reciprocals[divisor] = parts_of(b, value)


def _values(nodes: Sequence[Node]) -> Iterator[Expr]:
    """What nodes compute under no condition."""
    for node in nodes:
        match node:
            case Assign():
                yield node.value
            case UpdateArgument():
                yield node.candidate
            case Allocate() | Block():
                yield from _values(node.body)
            case _:
                pass


def _parts(expr: Expr, variable: str, written: Set[str]) -> Iterator[Apply]:
    if not isinstance(expr, Apply) or _is_constant(expr):
        return
    if _stays(expr, variable, written):
        yield expr
        return
    if expr.op == "div" and not _is_constant(expr.args[1]) and _stays(expr.args[1], variable, written):
        yield expr
        yield from _parts(expr.args[0], variable, written)
        return
    # What a condition chooses between is not always computed.
    for arg in expr.args[:1] if expr.op == "select" else expr.args:
        yield from _parts(arg, variable, written)


def _stays(expr: Expr, variable: str, written: Set[str]) -> bool:
    match expr:
        case Read():
            return expr.tensor not in written and not any(_moves(s, variable) for s in expr.subscripts)
        case IndexValue():
            return variable not in expr.affine.variables()
        case Apply():
            return all(_stays(arg, variable, written) for arg in expr.args)
        case _:
            return True


def _moves(subscript: Subscript, variable: str) -> bool:
    return not isinstance(subscript, Affine) or variable in subscript.variables()


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr, Const) or (isinstance(expr, Apply) and all(map(_is_constant, expr.args)))

"""Whether an innermost loop holds something that LLVM would take out of it: the loops of most programs do not, and then few of its passes are needed (`machine.py`).

Either a value goes from iteration to iteration through memory, which can be a register; or something is computed from elements that stay the same.
"""

from __future__ import annotations

from collections.abc import Set

from polyml.codegen.loops import Assign, For
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Apply, Expr, IndexValue, Read, Subscript, reads_of
from polyml.sets.affine import Affine, affine

__all__ = ["is_hoistable"]

Element = tuple[str, tuple[Subscript, ...]]


def is_hoistable(loop: For) -> bool:
    """Whether the loop, an innermost one, stores an element that its next iteration reads, reduces into one of an array that it does not read otherwise,
    or computes the same in every iteration."""
    assigned = [node for node in walk_nodes(loop.body) if isinstance(node, Assign)]
    written = {node.target.variable for node in assigned}
    return _carries(loop, assigned) or any(_repeats(node.value, loop.variable, written)[1] for node in assigned)


def _carries(loop: For, assigned: list[Assign]) -> bool:
    before = {loop.variable: affine(loop.variable) - loop.step}
    stored: set[Element] = set()
    read: set[Element] = set()
    reduced: set[str] = set()
    for node in assigned:
        place = node.target
        if not place.subscripts:
            continue
        last = tuple(s.substitute(before) if isinstance(s, Affine) else s for s in place.subscripts)
        if last != place.subscripts:
            stored.add((place.variable, last))
        elif node.reduction is not None:
            reduced.add(place.variable)
        read |= {(r.tensor, r.subscripts) for r in reads_of(node.value)}
    return not stored.isdisjoint(read) or bool(reduced - {name for name, _ in read})


def _repeats(expr: Expr, variable: str, written: Set[str]) -> tuple[bool, bool]:
    """Whether the expression reads elements, or indices and sizes, the same in every iteration and no others; and whether an operation in it has only such operands, or constants."""
    if isinstance(expr, Read):
        moves = any(not isinstance(s, Affine) or variable in s.variables() for s in expr.subscripts)
        return not moves and expr.tensor not in written, False
    if isinstance(expr, IndexValue):
        return variable not in expr.affine.variables(), False
    if not isinstance(expr, Apply):
        return False, False
    found = [(_is_constant(arg), *_repeats(arg, variable, written)) for arg in expr.args]
    if expr.op == "div" and found[1][1]:  # its reciprocal (math/quotient.py)
        return found[0][0] or found[0][1], True
    stays = all(constant or same for constant, same, _ in found) and any(same for _, same, _ in found)
    return stays, stays or any(repeated for _, _, repeated in found)


def _is_constant(expr: Expr) -> bool:
    return not isinstance(expr, (Read, IndexValue, Apply)) or (
        isinstance(expr, Apply) and all(map(_is_constant, expr.args))
    )

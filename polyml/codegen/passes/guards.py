"""Conditions over loops inside jammed loops: from where on they hold for all rows of a tile, for some, and for none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyml.codegen.loops import Allocate, For, If, Node
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, affine, maximum, minimum

__all__ = ["Guard", "cut_at_guard", "difference_of", "find_guard", "guards_to_bounds", "with_choice"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition over loops, which says that `difference` >= 0. loops: those around it, from the one that was searched inwards."""

    node: If
    difference: Affine
    loops: tuple[For, ...]


def find_guard(loop: For, variable: str) -> Guard | None:
    """The first condition on `variable` and the loop, or a loop below it, with loops inside."""

    def search(nodes: Sequence[Node], loops: tuple[For, ...]) -> Guard | None:
        for node in nodes:
            found = None
            if isinstance(node, Allocate):
                found = search(node.body, loops)
            elif isinstance(node, For):
                found = search(node.body, (*loops, node))
            elif isinstance(node, If) and any(isinstance(inner, For) for inner in walk_nodes(node.then)):
                difference = difference_of(node.condition)
                if difference is not None and variable in difference.variables():
                    found = Guard(node, difference, loops)
            if found is not None:
                return found
        return None

    return search(loop.body, (loop,))


def with_choice(nodes: tuple[Node, ...], guard: If, chosen: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with one branch in the condition's place."""

    def replaced(node: Node) -> tuple[Node, ...]:
        if node is guard:
            return chosen
        return (
            with_body(node, lambda body: with_choice(body, guard, chosen))
            if isinstance(node, Allocate | For)
            else node,
        )

    return tuple(new for node in nodes for new in replaced(node))


def cut_at_guard(guard: Guard, rows: For) -> tuple[tuple[Affine, Affine, bool | None], ...] | None:
    """Ranges of the guard's outermost loop, in order, with the condition's value for all iterations of `rows` in it; None: it differs.

    None altogether when the condition does not become one value along the loop.
    """
    loop = guard.loops[0]
    ends = [guard.difference, guard.difference]
    for sense in (0, 1):
        for inner in (*reversed(guard.loops[1:]), rows):
            found = _extreme(ends[sense], inner, highest=bool(sense), towards=(loop.variable, rows.lower))
            if found is None:
                return None
            ends[sense] = found
    slope = ends[0].stride(loop.variable)
    if not slope or slope != ends[1].stride(loop.variable):
        return None
    grid = abs(slope) * loop.step
    # In steps from the lower bound, `difference >= 0` up to the quotient (slope < 0) or from its opposite on.
    rests = [end.substitute({loop.variable: loop.lower}) for end in ends]
    if slope < 0:
        steps = [rest // grid + 1 for rest in rests]
        values: tuple[bool | None, ...] = (True, None, False)
    else:
        steps = [-(rest // grid) for rest in reversed(rests)]
        values = (False, None, True)
    first, second = (minimum([loop.upper, maximum([loop.lower, loop.lower + step * loop.step])]) for step in steps)
    return tuple(zip((loop.lower, first, second), (first, second, loop.upper), values, strict=True))


def _extreme(value: Affine, loop: For, *, highest: bool, towards: tuple[str, Affine]) -> Affine | None:
    """An affine bound of `value` over the loop's range, of operands of its extrema the one that knows more of `towards`."""
    coefficient = value.stride(loop.variable)
    if coefficient is None:
        return None
    if coefficient == 0:
        return value
    upwards = (coefficient > 0) == highest
    bound = loop.upper - 1 if upwards else loop.lower
    candidates = list(_linear_operands(bound, "min" if upwards else "max"))
    if not candidates:
        return None
    wanted = {towards[0], *towards[1].variables()}
    best = max(candidates, key=lambda operand: len(wanted & operand.variables()))
    return value + (best - affine(loop.variable)) * coefficient


def _linear_operands(bound: Affine, kind: str) -> Iterator[Affine]:
    if all(isinstance(atom, str) for atom, _ in bound.terms):
        yield bound
        return
    extrema = [(atom, c) for atom, c in bound.terms if isinstance(atom, Extremum)]
    if len(extrema) == 1 and extrema[0][1] == 1 and extrema[0][0].kind == kind:
        rest = bound - affine(extrema[0][0])
        for operand in extrema[0][0].operands:
            yield from _linear_operands(rest + operand, kind)


def guards_to_bounds(node: Node, variable: str) -> tuple[Node, ...]:
    """The loops below with their conditions on `variable` as bounds, where those are on loops of step 1.

    Rewrite:
        for (j = 0; j < 9; j++) { S  if (i >= j) for (k ..) T }
        -> for (j = 0; j < min(9, i + 1); j++) { S  for (k ..) T }  for (j = max(0, i + 1); j < 9; j++) S
    """
    if not isinstance(node, For):
        return (node,)
    guard = find_guard(node, variable)
    if guard is None:
        return (node,)
    if len(guard.loops) > 1:
        return (replace(node, body=tuple(new for child in node.body for new in guards_to_bounds(child, variable))),)
    slope = guard.difference.stride(node.variable)
    if slope not in (1, -1) or node.step != 1:
        return (node,)
    rest = guard.difference - affine(node.variable) * slope
    value = -rest if slope == 1 else rest + 1
    made = []
    for below in (True, False):
        body = with_choice(node.body, guard.node, guard.node.then if below == (slope == -1) else guard.node.otherwise)
        lower = node.lower if below else maximum([node.lower, value])
        upper = minimum([node.upper, value]) if below else node.upper
        if body:
            made.append(replace(node, lower=lower, upper=upper, factor=1, body=body))
    return tuple(made)


def difference_of(condition: Expr) -> Affine | None:
    """What the condition says is >= 0."""
    if not isinstance(condition, Apply) or condition.op not in ("lt", "le", "gt", "ge"):
        return None
    left, right = (_index(arg) for arg in condition.args)
    if left is None or right is None:
        return None
    match condition.op:
        case "ge":
            return left - right
        case "gt":
            return left - right - 1
        case "le":
            return right - left
        case _:
            return right - left - 1


def _index(expr: Expr) -> Affine | None:
    if isinstance(expr, IndexValue):
        return expr.affine
    if isinstance(expr, Const) and expr.dtype.is_integer:
        return affine(int(expr.value))
    return None

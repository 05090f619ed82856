"""Loops over updates of computed elements that a mask makes nothing of are skipped: `a[t, place(y, x, t)] += where(e[y, x], 1, 0)` asks once for all t.

Such updates go element by element, each some cycles, so that a loop of them is dearer than a branch that nobody foresaw. Loops with lanes do better with a select.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, If, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, variables_of, walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, reads_of
from polyml.masked_terms import LEAST_SKIPPED, LEAST_SKIPPED_IN_LANES, mask_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["skip_masked"]


def skip_masked(function: Function, *, precise: bool) -> Function:
    """The function with such loops under a condition.

    Rewrite:
        for (t ..) a[t, p[t]] += select(e[y, x], v, 0);
        -> if (e[y, x]) for (t ..) a[t, p[t]] += v;
    """
    if not any(isinstance(node, Assign) and _is_computed(node) for node in nodes_of(function)):
        return function
    return map_loops(function, _Skipping(precise).skipped)


@dataclass(frozen=True, slots=True)
class _Skipping:
    precise: bool

    def skipped(self, loop: For, ranges: Ranges, _: For | None) -> Node | None:
        condition = self.condition(loop) if loop.kind in ("sequential", "vector") else None
        if condition is None or not (_is_long(loop, ranges) and _updates(loop, ranges.enter(loop))):
            return None
        made = If(condition=condition, then=(with_body(loop, self.chosen),))
        # Ahead of a loop without iterations nobody may read the mask: its place may be none.
        runs = Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean)
        return made if ranges.is_positive(loop.upper - loop.lower) else If(condition=runs, then=(made,))

    def condition(self, loop: For) -> Expr | None:
        """What all updates in the loop ask for, if it is the same in all iterations; None where anything else is done there."""
        inside = [*walk_nodes(loop.body)]
        updates = [node for node in inside if isinstance(node, Assign)]
        if not updates or not all(isinstance(node, For | Assign) for node in inside):
            return None
        masks = [self.mask(update) for update in updates]
        condition = masks[0][0] if masks[0] is not None else None
        if condition is None or not all(mask is not None and mask[0] == condition for mask in masks):
            return None
        moving = {loop.variable, *(node.variable for node in inside if isinstance(node, For))}
        written = {update.target.variable for update in updates}
        changes = moving & variables_of(condition) or written & {read.tensor for read in reads_of(condition)}
        return None if changes else condition

    def mask(self, update: Assign) -> tuple[Expr, Expr] | None:
        if update.reduction is None or update.scan is not None or not _is_computed(update):
            return None
        return mask_of(update.value, update.reduction, precise=self.precise)

    def chosen(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes where the condition holds."""

        def inside(node: Node) -> Node:
            if not isinstance(node, Assign):
                return with_body(node, self.chosen)
            mask = self.mask(node)
            return node if mask is None else replace(node, value=mask[1])

        return renewed(nodes, map(inside, nodes))


def _is_computed(update: Assign) -> bool:
    return not all(isinstance(subscript, Affine) for subscript in update.target.subscripts)


def _updates(loop: For, inside: Ranges) -> bool:
    """Whether each of its iterations is certain to update something."""
    loops = [node for node in loop.body if isinstance(node, For) and inside.is_positive(node.upper - node.lower)]
    return any(isinstance(node, Assign) for node in loop.body) or any(
        _updates(node, inside.enter(node)) for node in loops
    )


def _is_long(loop: For, ranges: Ranges) -> bool:
    """Whether the loop has iterations enough, those of loops inside counted."""
    trips, node, least = 1, loop, LEAST_SKIPPED
    while True:
        most = ranges.highest(node.upper - node.lower)
        if most is None:
            return True
        trips *= max(most, 0) // node.step
        least = LEAST_SKIPPED_IN_LANES if node.kind == "vector" else least
        if len(node.body) != 1 or not isinstance(inner := node.body[0], For):
            return trips >= least
        ranges, node = ranges.enter(node), inner

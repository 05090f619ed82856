"""Terms of rows of zeros, which a padded operand has beside its values, are left out of sums.

Points at the edge of a padded image multiply by whole rows of zeros: of 3x3 windows over 14 x 14 a twentieth of all terms, over 7 x 7 a tenth, of dilated ones more. Where a row of a window is an iteration of its own, for all
points of a register tile the same, the loop over these rows begins and ends with the values. Neighbours within a row have their zeros at other places each, and keep them.

A factor that is infinite or no number makes no NaN of such a zero (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Prefetch
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Expr, Read, factors_of
from polyml.renewed import renewed
from polyml.sets.affine import Affine, maximum, minimum

__all__ = ["Range", "Values", "ranges_with_values", "skip_zeros"]

Values = Mapping[str, tuple[tuple[int, int] | None, ...]]
"""By array, the first and the end of the places of each dimension beyond which there are zeros; None for a dimension that has none."""

Range = tuple[Affine, Affine]
"""First and end of a loop's values."""


def skip_zeros(function: Function, values: Values) -> Function:
    """The function with loops over rows of windows that end where the values do.

    Rewrite:
        for (r = 0; r < 3; r++) { for (s ..) sum += x[c, p + r, q + s] * w[c, r, s]; }    where x[c, 0, ..] and x[c, 15, ..] are zero
        -> for (r = max(0, 1 - p); r < min(3, 15 - p); r++) { for (s ..) .. }
    """
    if not values:
        return function
    body = tuple(_skipped(function.body, values, frozenset()))
    return function if body == function.body else replace(function, body=body)


def _skipped(nodes: tuple[Node, ...], values: Values, lanes: frozenset[str]) -> tuple[Node, ...]:
    """lanes: variables of the vector loops around."""

    def inside(node: Node) -> Node:
        if not isinstance(node, For):
            return with_body(node, lambda body: _skipped(body, values, lanes))
        own = lanes | {node.variable} if node.kind == "vector" else lanes
        made = with_body(node, lambda body: _skipped(body, values, own))
        assert isinstance(made, For), "internal: a loop is something else"
        return _with_ends(made, values, own)

    return renewed(nodes, map(inside, nodes))


def _with_ends(loop: For, values: Values, lanes: frozenset[str]) -> For:
    """The loop over the iterations that have values, where all of its terms have them in the same ones."""
    if loop.kind != "sequential" or loop.step != 1:
        return loop
    inner = {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)}
    common: set[Range] | None = None
    for node in walk_nodes(loop.body):
        match node:
            case For() if node.kind == "sequential":
                pass
            case Prefetch():
                pass
            case Assign() if node.reduction == "sum":
                found = set(ranges_with_values(loop.variable, node.value, values, inner | lanes))
                common = found if common is None else common & found
                if not common:
                    return loop
            case _:
                return loop
    if not common:
        return loop
    firsts, ends = zip(*common, strict=True)
    return replace(loop, lower=maximum((loop.lower, *firsts)), upper=minimum((loop.upper, *ends)))


def ranges_with_values(
    variable: str, term: Expr, values: Values, unknown: frozenset[str] | set[str]
) -> Iterator[Range]:
    """Of the variable's values those for which the product may be other than zero. unknown: variables that a range may not depend on."""
    for factor in factors_of(term):
        known = values.get(factor.tensor, ()) if isinstance(factor, Read) else ()
        if not isinstance(factor, Read) or len(known) != len(factor.subscripts):
            continue
        for subscript, places in zip(factor.subscripts, known, strict=True):
            step = subscript.stride(variable) if isinstance(subscript, Affine) else None
            if places is None or not isinstance(subscript, Affine) or step is None or step <= 0:
                continue
            base = subscript.substitute({variable: 0})
            if not base.variables() & unknown:
                first, end = places
                yield (first - base + (step - 1)) // step, (end - 1 - base) // step + 1

"""The rewriter: applies one table of rules in order until nothing changes, and one of rules that come once, after those (rules/table.py).

Each rule takes a Graph and gives an equal one (the same object when it does not apply), so rules can be run, tested and printed one by one. A rule that has left a graph alone is not asked about that graph again:
of a round that follows the last change only the rules before it are run.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.graph.ir import Graph
from polyml.graph.rules.table import LAST_RULES, RULES, RewriteOptions, Rule
from polyml.graph.storage import settle_results

__all__ = ["rewrite"]

_MOST_ROUNDS = 10


_NOTHING_KNOWN = RewriteOptions()


def rewrite(graph: Graph, options: RewriteOptions = _NOTHING_KNOWN) -> Graph:
    """The graph in its simplest equal form, settled for planning (storage.settle_results)."""
    rules = [rule for rule in RULES if rule.suits(options)]
    left_alone: dict[int, Graph] = {}
    for _ in range(_MOST_ROUNDS):
        graph = _to_fixpoint(graph, rules, options, left_alone)
        settled = settle_results(graph)
        if settled is graph:
            break
        # Ordering: the copies that settling adds may go into what makes their source.
        graph = settled
    graph = _in_order(graph, [rule for rule in LAST_RULES if rule.suits(options)], options, {})
    # Ordering: rules may have added readers of what an argument held (rules/windows/guarded.py), whose new value then cannot be made in its place.
    return settle_results(graph)


def _to_fixpoint(
    graph: Graph,
    rules: Sequence[Rule],
    options: RewriteOptions,
    left_alone: dict[int, Graph],
) -> Graph:
    for _ in range(_MOST_ROUNDS):
        before, graph = graph, _in_order(graph, rules, options, left_alone)
        if graph is before:
            break
    return graph


def _in_order(
    graph: Graph,
    rules: Sequence[Rule],
    options: RewriteOptions,
    left_alone: dict[int, Graph],
) -> Graph:
    """Each rule once. left_alone: by a rule's place the last graph that it gave back as it was."""
    for place, rule in enumerate(rules):
        if left_alone.get(place) is graph:
            continue
        after = rule.apply(graph, options)
        if after is graph:
            left_alone[place] = graph
        graph = after
    return graph

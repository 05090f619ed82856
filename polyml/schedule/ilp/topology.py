"""Graphs of statements: strongly connected components, topological order, paths around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Edges", "Names", "components", "is_between", "topological"]

Names = tuple[str, ...]
Edges = Mapping[str, set[str]]
"""Successors by statement."""


def components(group: Sequence[str], edges: Edges) -> list[tuple[str, ...]]:
    """Strongly connected components in topological order, nearest to the order of `group`.

    Source: Tarjan, "Depth-first search and linear graph algorithms" (SIAM J. Computing 1972), without recursion.
    """
    rank = {name: k for k, name in enumerate(group)}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[Names] = []
    for start in group:
        path = [(start, iter(sorted(edges[start], key=rank.__getitem__)))] if start not in number else []
        while path:
            name, after = path[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                stack.append(name)
            for successor in after:
                if successor not in number:
                    path.append((successor, iter(sorted(edges[successor], key=rank.__getitem__))))
                    break
                if successor in low:
                    low[name] = min(low[name], number[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == number[name]:
                    cut = stack.index(name)
                    cycle = tuple(sorted(stack[cut:], key=rank.__getitem__))
                    for member in stack[cut:]:
                        del low[member]
                    del stack[cut:]
                    found.append(cycle)
    return [found[k] for k in topological(found, edges, [rank[cycle[0]] for cycle in found])]


def topological(parts: Sequence[Names], edges: Edges, ranks: Sequence[int]) -> list[int]:
    """The order of the parts, by position, in which every edge points forward, those of the lowest rank first."""
    owner = {name: k for k, names in enumerate(parts) for name in names}
    after: list[set[int]] = [set() for _ in parts]
    for k, names in enumerate(parts):
        for name in names:
            after[k] |= {owner[other] for other in edges[name] if other in owner}
        after[k].discard(k)
    waiting = [0] * len(parts)
    for later in after:
        for k in later:
            waiting[k] += 1
    ready = sorted((k for k in range(len(parts)) if not waiting[k]), key=ranks.__getitem__)
    ordered: list[int] = []
    while ready:
        k = ready.pop(0)
        ordered.append(k)
        opened = []
        for later_part in after[k]:
            waiting[later_part] -= 1
            if not waiting[later_part]:
                opened.append(later_part)
        if opened:
            ready = sorted((*ready, *opened), key=ranks.__getitem__)
    assert len(ordered) == len(parts), "internal: parts of a group depend on each other in a cycle"
    return ordered


def is_between(parts: Sequence[Names], first: int, last: int, edges: Edges) -> bool:
    """Of parts in topological order, whether one lies on a path from one part to the other, so that joining the two would close a cycle."""
    reached = set[str]().union(*(edges[name] for name in parts[first]))
    target = set(parts[last])
    for names in parts[first + 1 : last]:
        if not reached.isdisjoint(names):
            onward = set[str]().union(*(edges[name] for name in names))
            if not onward.isdisjoint(target):
                return True
            reached |= onward
    return False

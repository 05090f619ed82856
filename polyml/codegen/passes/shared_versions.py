"""Two versions of a function that differ in few nodes, as one: their condition is asked where they differ, and what they share is compiled once.

Stores past the caches (codegen/passes/large.py) change the ends of register tiles and nothing of the sums before them, which are nearly all of the code. A tile asks once what a call would
ask once, which is nothing beside its sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.codegen.loops import Allocate, For, If, Node
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr

__all__ = ["shared"]

MOST_APART = 0.25
"""Of the nodes of both versions the part that may differ: where it is more, the tests would be many and save little."""


def shared(condition: Expr, one: Sequence[Node], other: Sequence[Node]) -> tuple[Node, ...] | None:
    """Nodes that do what `one` does where the condition holds (it changes nowhere inside), else what `other` does; None where the two have little in common, or local storage where they differ."""
    merged = _Merge(condition)
    made = merged.nodes(one, other)
    apart = [*walk_nodes(merged.apart)]
    most = MOST_APART * (_count(one) + _count(other))
    return made if len(apart) <= most and not any(isinstance(node, Allocate) for node in apart) else None


def _count(nodes: Sequence[Node]) -> int:
    return sum(1 for _ in walk_nodes(nodes))


class _Merge:
    """apart: the nodes that only one of the versions has."""

    def __init__(self, condition: Expr) -> None:
        self.condition = condition
        self.apart: list[Node] = []

    def nodes(self, one: Sequence[Node], other: Sequence[Node]) -> tuple[Node, ...]:
        before = len(self.apart)
        if len(one) == len(other):
            pairs = [self.node(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
            if None not in pairs:
                return tuple(node for node in pairs if node is not None)
            del self.apart[before:]
        same = 0
        while same < min(len(one), len(other)) and one[same] == other[same]:
            same += 1
        behind = 0
        while behind < min(len(one), len(other)) - same and one[-1 - behind] == other[-1 - behind]:
            behind += 1
        return (
            *one[:same],
            *self.either(one[same : len(one) - behind], other[same : len(other) - behind]),
            *one[len(one) - behind :],
        )

    def node(self, one: Node, other: Node) -> Node | None:
        """Both in one; None where they are not the same but for what is inside."""
        if one == other:
            return one
        match one, other:
            case For(), For() if replace(one, body=()) == replace(other, body=()):
                return replace(one, body=self.nodes(one.body, other.body))
            case Allocate(), Allocate() if one.variable == other.variable:
                return replace(one, body=self.nodes(one.body, other.body))
            case If(), If() if one.condition == other.condition:
                then = self.nodes(one.then, other.then)
                return replace(one, then=then, otherwise=self.nodes(one.otherwise, other.otherwise))
        return None

    def either(self, one: Sequence[Node], other: Sequence[Node]) -> tuple[Node, ...]:
        """What tells the versions apart; of a node that itself does either something or what the other version does, one test is enough."""
        self.apart += [*one, *other]
        match one:
            case [If(condition=condition, then=then, otherwise=otherwise)] if otherwise == tuple(other):
                both = Apply("and", (self.condition, condition), boolean)
                return (If(condition=both, then=then, otherwise=otherwise),)
        return (If(condition=self.condition, then=tuple(one), otherwise=tuple(other)),)

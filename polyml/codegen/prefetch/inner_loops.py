"""Innermost loops, and what is put first in their iterations: what the passes are made of that fetch something from inside sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch
from polyml.codegen.rewrite import have_no_bodies, with_body

__all__ = ["inner_loops", "put_first"]


def inner_loops(nodes: tuple[Node, ...], around: tuple[For, ...] = ()) -> Iterator[tuple[For, ...]]:
    """The loops that have nothing but assignments (and prefetches) inside, each with the loops around it, outermost first."""
    for node in nodes:
        match node:
            case For():
                if all(isinstance(part, Assign | Prefetch) for part in node.body):
                    yield (*around, node)
                yield from inner_loops(node.body, (*around, node))
            case Allocate() | Block():
                yield from inner_loops(node.body, around)
            case If():
                yield from inner_loops((*node.then, *node.otherwise), around)
            case _:
                pass


def put_first(nodes: tuple[Node, ...], wanted: Mapping[int, tuple[Node, ...]]) -> tuple[Node, ...]:
    """The nodes, with each loop's iterations beginning with what is wanted there. wanted: by the loop's id()."""
    if have_no_bodies(nodes):
        return nodes
    made: list[Node] = []
    changed = False
    for node in nodes:
        new = with_body(node, lambda body: put_first(body, wanted))
        if isinstance(new, For) and id(node) in wanted:
            new = replace(new, body=(*wanted[id(node)], *new.body))
        changed = changed or new is not node
        made.append(new)
    return tuple(made) if changed else nodes

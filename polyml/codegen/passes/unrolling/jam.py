"""Copies of a loop body for several values of its variable, fused: the step that vectorization and unroll-and-jam share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Prefetch, UpdateArgument
from polyml.codegen.rewrite import nodes_of, rename_variables, substitute_nodes, variables_of
from polyml.expressions import Read, reads_of
from polyml.new_names import fresh
from polyml.records import replace
from polyml.sets.affine import Affine

__all__ = ["CannotJam", "jam", "names_in"]


_LAST: list[tuple[tuple[Node, ...], frozenset[str]]] = [((), frozenset())]
"""The nodes that were looked at last (nodes_of keeps them while their function does), and their names."""


class CannotJam(Exception):
    """The copies cannot run side by side; the text says why."""


def jam(
    nodes: tuple[Node, ...],
    variable: str,
    values: Sequence[Affine],
    *,
    taken: set[str],
    names: Sequence[Mapping[str, str]] = (),
) -> tuple[Node, ...]:
    """One copy of `nodes` per value of `variable`, interleaved assignment by assignment; inner loops are shared, as are conditions
    that do not depend on the variable.

    What an inner Allocate makes exists once per copy, under fresh names (the first copy keeps its own). It is not checked that running the copies
    side by side is allowed.

    Args:
        taken: names in use; the new ones are added.
        names: storage variables to rename in each copy, as well.

    Raises:
        CannotJam: bounds of an inner loop depend on the variable.
    """
    renames = [dict(n) for n in names] if names else [{} for _ in values]
    return _jam(nodes, variable, tuple(values), renames, taken)


def names_in(function: Function) -> set[str]:
    """All names that stand for something in the function: what it adds needs others."""
    given = {v.name for v in function.arguments} | set(function.sizes) | {lead.name for lead in function.leads}
    nodes, (known, names) = nodes_of(function), _LAST[0]
    if known is not nodes:
        names = _names_in(nodes)
        _LAST[0] = nodes, names
    return given | names


def _names_in(nodes: Sequence[Node]) -> frozenset[str]:
    """Of loops, and of storage that these nodes make or write. What they only read is an argument, or made around them."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case Assign():
                found.add(node.target.variable)
                if node.scan is not None:
                    found.update(node.scan.carries)
            case UpdateArgument():
                found.update((node.best.variable, node.argument.variable))
            case Prefetch():
                found.add(node.place.variable)
            case For():
                found.add(node.variable)
            case Allocate():
                found.add(node.variable.name)
            case Block() | If():
                pass
            case _:
                assert_never(node)
    return frozenset(found)


def _jam(
    nodes: tuple[Node, ...], variable: str, values: tuple[Affine, ...], renames: list[dict[str, str]], taken: set[str]
) -> tuple[Node, ...]:
    made: list[Node] = []
    for run in _runs(nodes):
        node = run[0]
        match node:
            case Assign() if len(run) > 1:
                made.extend(_copies_in_turn(run, variable, values, renames))
            case Assign() | UpdateArgument() | Prefetch():
                made.extend(_copies(node, variable, values, renames))
            case Block():
                made.extend(_jam(node.body, variable, values, renames, taken))
            case For():
                if variable in node.lower.variables() | node.upper.variables():
                    raise CannotJam(f"the bounds of loop {node.variable} depend on {variable}")
                made.append(replace(node, body=_jam(node.body, variable, values, renames, taken)))
            case If():
                own = any(read.tensor in names for names in renames for read in reads_of(node.condition))
                if own or variable in variables_of(node.condition):
                    made.extend(_copies(node, variable, values, renames))
                else:
                    then = _jam(node.then, variable, values, renames, taken)
                    otherwise = _jam(node.otherwise, variable, values, renames, taken)
                    made.append(If(condition=node.condition, then=then, otherwise=otherwise))
            case Allocate():
                name = node.variable.name
                copies = [name, *(fresh(name, taken) for _ in values[1:])]
                inner = [{**old, name: new} for old, new in zip(renames, copies, strict=True)]
                body = _jam(node.body, variable, values, inner, taken)
                for copy in reversed(copies):
                    body = (Allocate(variable=replace(node.variable, name=copy), body=body),)
                made.extend(body)
            case _:
                assert_never(node)
    return tuple(made)


def _runs(nodes: tuple[Node, ...]) -> Iterator[list[Node]]:
    """The nodes one by one, but neighbouring updates of reductions into different elements together, and so registers that are stored."""
    run: list[Node] = []
    targets: list[Place] = []
    kind: str | None = None
    for node in nodes:
        before, kind = kind, _kind(node)
        if run and (kind is None or kind != before or (isinstance(node, Assign) and node.target in targets)):
            yield run
            run, targets = [], []
        run.append(node)
        targets += [node.target] if isinstance(node, Assign) else []
    if run:
        yield run


def _kind(node: Node) -> str | None:
    """What goes together: updates, and stores of registers."""
    if not isinstance(node, Assign):
        return None
    stored = isinstance(node.value, Read) and not node.value.subscripts and node.target.subscripts
    return "update" if node.reduction is not None else "store" if stored else None


def _copies_in_turn(
    run: list[Node], variable: str, values: tuple[Affine, ...], renames: list[dict[str, str]]
) -> Iterator[Node]:
    """One copy of a whole run after the other: of a register tile all vectors of a row, then the next row. What the rows share, vectors, stays in registers,
    and of what only a row reads one value is live at a time; a line that two vectors share is written at once."""
    for value, names in zip(values, renames, strict=True):
        for node in run:
            yield from _copies(node, variable, (value,), [names])


def _copies(node: Node, variable: str, values: tuple[Affine, ...], renames: list[dict[str, str]]) -> list[Node]:
    made: list[Node] = []
    for value, names in zip(values, renames, strict=True):
        changed = {old: new for old, new in names.items() if old != new}
        made.extend(substitute_nodes(rename_variables((node,), changed), {variable: value}))
    return made

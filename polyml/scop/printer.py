"""Scops and dependences as text: statements in order, relations sorted by statement."""

from __future__ import annotations

import islpy as isl

from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.spaces import maps_of
from polyml.shown import text_of

__all__ = ["accesses_text", "dependences_text", "domains_text", "relation_lines", "relations_text"]


@text_of.register
def domains_text(scop: Scop) -> str:
    """Arrays, then every statement with its domain and what it does."""
    lines = [f"scop {scop.name}"]
    for array in scop.arrays.values():
        shape = ", ".join(map(str, array.shape))
        lines.append(f"  {array.kind} {array.name}: {array.dtype}[{shape}]")
    for statement in scop.statements.values():
        lines.append(f"  {_domain_text(statement.domain)}")
        lines.append(f"    {_action(statement)}")
    return "\n".join(lines)


def accesses_text(scop: Scop) -> str:
    """The scop's maps, statement by statement, on the statement's domain: the elements that it reads and writes, and when its instances run in the written order.

    What has a computed subscript may write; all else must.
    """
    relations = {
        "reads": scop.reads,
        "writes": scop.must_writes,
        "may write": scop.may_writes.subtract(scop.must_writes),
        "written order": scop.initial,
    }
    lines = [f"accesses of {scop.name}"]
    for statement in scop.statements.values():
        lines.append(f"  {_domain_text(statement.domain)}")
        for kind, relation in relations.items():
            own = relation.intersect_domain(statement.domain.to_union_set())
            pieces = (piece.to_map() for m in maps_of(own) for piece in m.get_basic_maps())
            lines += [f"    {kind}: {m}" for m in sorted({str(m.gist_domain(statement.domain)) for m in pieces})]
    return "\n".join(lines)


def dependences_text(scop: Scop, dependences: Dependences) -> str:
    """A line with the scop's name above `relations_text`."""
    return f"dependences of {scop.name}\n{relations_text(dependences)}"


@text_of.register
def relations_text(dependences: Dependences) -> str:
    """Flow, anti and output dependences, and the reductions' own, one relation a line."""
    kinds = {
        "flow": dependences.flow,
        "anti": dependences.anti,
        "output": dependences.output,
        "reduction": dependences.reduction,
        "live in": dependences.live_in,
        "live out": dependences.live_out,
    }
    return "\n".join(f"  {kind}: {line}" for kind, relation in kinds.items() for line in relation_lines(relation))


def relation_lines(relation: isl.UnionMap) -> list[str]:
    """The maps of a union, sorted by their text (isl's own order is that of a hash)."""
    return sorted(map(str, maps_of(relation)))


def _domain_text(domain: isl.Set) -> str:
    return str(domain)


def _action(statement: Statement) -> str:
    match statement.kind:
        case "update" if statement.argument is not None:
            return f"({statement.target}, {statement.argument}) {statement.reduction}= ({statement.value}, {statement.argument_value})"
        case "init" if statement.argument is not None:
            return f"({statement.target}, {statement.argument}) = ({statement.value}, -1)"
        case "update":
            return f"{statement.target} {statement.reduction}= {statement.value}"
        case _:
            return f"{statement.target} = {statement.value}"

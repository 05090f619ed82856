"""Scops and dependences as text: statements in order, relations sorted by statement."""

from __future__ import annotations

import islpy as isl

from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.spaces import maps_of
from polyml.shown import text_of

__all__ = ["dependences_text", "domains_text", "relation_lines", "relations_text"]


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
        case "update":
            return f"{statement.target} {statement.reduction}= {statement.value}"
        case _:
            return f"{statement.target} = {statement.value}"

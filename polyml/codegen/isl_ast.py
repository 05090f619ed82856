"""Reading isl's AST: its loops, and the statement instances that it executes.

Domain nodes carry an annotation "instance:<number>", which whoever generated the AST put there.
"""

from __future__ import annotations

from collections.abc import Iterator

import islpy as isl

from polyml.codegen.isl_expr import affine_from_ast, conjuncts
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, maximum, minimum

__all__ = [
    "BAND_END",
    "FOR",
    "IF",
    "AstKind",
    "LoopHead",
    "annotate",
    "children",
    "has_own_loop",
    "instance_number",
    "instances_in",
    "kind_of",
    "loop_head",
    "loops_in",
]

AstKind = isl.ast_node_type
FOR, IF = AstKind(1), AstKind(2)
"""`for_` and `if_`, which islpy's type stubs leave out."""
BAND_END = "end of band"
"""The mark below the band of a marked loop."""


@dataclass(frozen=True, slots=True)
class LoopHead:
    """`for (iterator = lower; iterator < upper; iterator += step)`; a degenerate loop has the one iteration `lower`."""

    iterator: str
    lower: Affine
    upper: Affine
    step: int
    degenerate: bool


def kind_of(node: isl.AstNode) -> isl.ast_node_type:
    """The node's type (islpy's stubs call it an int)."""
    return AstKind(node.get_type())


def loop_head(node: isl.AstNode) -> LoopHead:
    """What a for node says.

    Raises:
        CodegenError: a bound is not quasi-affine.
    """
    iterator = node.for_get_iterator().id_get_id().get_name()
    lower = affine_from_ast(node.for_get_init())
    if node.for_is_degenerate():
        return LoopHead(iterator, lower, lower + 1, 1, True)
    ends = []
    for part in conjuncts(node.for_get_cond()):
        end = affine_from_ast(part.op_get_arg(1))
        ends.append(_after(end) if isl.ast_expr_op_type(part.op_get_type()) == isl.ast_expr_op_type.le else end)
    step = node.for_get_inc().int_get_val().to_python()
    return LoopHead(iterator, lower, minimum(ends), step, False)


def annotate(node: isl.AstNode, number: int) -> isl.AstNode:
    """The domain node with the number of its instance."""
    return node.set_annotation(isl.Id(f"instance:{number}"))


def instance_number(node: isl.AstNode) -> int:
    """The number that a domain node is annotated with."""
    return int(node.get_annotation().get_name().rsplit(":", 1)[1])


def children(node: isl.AstNode) -> Iterator[isl.AstNode]:
    """The children of a block, in order."""
    found = node.block_get_children()
    for position in range(found.n_ast_node()):
        yield found.get_ast_node(position)


def instances_in(node: isl.AstNode) -> Iterator[int]:
    """The instances in an AST, in order."""
    return (instance_number(n) for n in _walk(node) if kind_of(n) == AstKind.user)


def loops_in(node: isl.AstNode) -> Iterator[isl.AstNode]:
    """The loops in an AST that iterate, outermost first."""
    return (n for n in _walk(node) if kind_of(n) == FOR and not n.for_is_degenerate())


def has_own_loop(node: isl.AstNode) -> bool:
    """Whether a loop, degenerate ones included, stands below a band's mark and above its `BAND_END`."""
    kind = kind_of(node)
    if kind == AstKind.mark:
        return node.mark_get_id().get_name() != BAND_END and has_own_loop(node.mark_get_node())
    if kind == IF:
        branches = [node.if_get_then_node(), *([node.if_get_else_node()] if node.if_has_else_node() else [])]
        return any(map(has_own_loop, branches))
    return kind == FOR or (kind == AstKind.block and any(map(has_own_loop, children(node))))


def _walk(node: isl.AstNode) -> Iterator[isl.AstNode]:
    yield node
    kind = kind_of(node)
    if kind == AstKind.block:
        for child in children(node):
            yield from _walk(child)
    elif kind == FOR:
        yield from _walk(node.for_get_body())
    elif kind == AstKind.mark:
        yield from _walk(node.mark_get_node())
    elif kind == IF:
        yield from _walk(node.if_get_then_node())
        if node.if_has_else_node():
            yield from _walk(node.if_get_else_node())


def _after(last: Affine) -> Affine:
    """`last + 1`, inside of a minimum."""
    if last.constant == 0 and len(last.terms) == 1 and last.terms[0][1] == 1:
        atom = last.terms[0][0]
        if isinstance(atom, Extremum):
            return (minimum if atom.kind == "min" else maximum)(operand + 1 for operand in atom.operands)
    return last + 1

"""Reading isl's AST: its loops, conditions and marks, and the statement instances that it executes.

Domain nodes carry an annotation "instance:<number>", which whoever generated the AST put there.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.codegen.isl_expr import affine_from_ast, condition_from_ast, conjuncts
from polyml.codegen.scanned import Choice, Code, Instance, Loop, Marked, Together
from polyml.sets.affine import Affine, Extremum, maximum, minimum

__all__ = ["annotate", "read_ast"]

_Kind = isl.ast_node_type
_FOR, _IF = _Kind(1), _Kind(2)  # `for_` and `if_`, which islpy's type stubs leave out


def annotate(node: isl.AstNode, number: int) -> isl.AstNode:
    """The domain node with the number of its instance."""
    return node.set_annotation(isl.Id(f"instance:{number}"))


def read_ast(node: isl.AstNode, instances: Sequence[Instance]) -> Code:
    """The code of an AST; instances: by the numbers that its domain nodes are annotated with.

    Raises:
        CodegenError: a bound or a condition is not quasi-affine.
    """
    kind = _Kind(node.get_type())
    if kind == _Kind.user:
        return instances[int(node.get_annotation().get_name().rsplit(":", 1)[1])]
    if kind == _Kind.block:
        found = node.block_get_children()
        return Together(tuple(read_ast(found.get_ast_node(k), instances) for k in range(found.n_ast_node())))
    if kind == _FOR:
        return _loop(node, instances)
    if kind == _IF:
        otherwise = read_ast(node.if_get_else_node(), instances) if node.if_has_else_node() else None
        return Choice(condition_from_ast(node.if_get_cond()), read_ast(node.if_get_then_node(), instances), otherwise)
    assert kind == _Kind.mark, "internal: an AST node of unknown type"
    return Marked(str(node.mark_get_id().get_name()), read_ast(node.mark_get_node(), instances))


def _loop(node: isl.AstNode, instances: Sequence[Instance]) -> Loop:
    iterator = node.for_get_iterator().id_get_id().get_name()
    lower, body = affine_from_ast(node.for_get_init()), read_ast(node.for_get_body(), instances)
    if node.for_is_degenerate():
        return Loop(iterator, lower, lower + 1, 1, True, body)
    ends = []
    for part in conjuncts(node.for_get_cond()):
        end = affine_from_ast(part.op_get_arg(1))
        ends.append(_after(end) if isl.ast_expr_op_type(part.op_get_type()) == isl.ast_expr_op_type.le else end)
    return Loop(iterator, lower, minimum(ends), node.for_get_inc().int_get_val().to_python(), False, body)


def _after(last: Affine) -> Affine:
    """`last + 1`, inside of a minimum."""
    if last.constant == 0 and len(last.terms) == 1 and last.terms[0][1] == 1:
        atom = last.terms[0][0]
        if isinstance(atom, Extremum):
            return (minimum if atom.kind == "min" else maximum)(operand + 1 for operand in atom.operands)
    return last + 1

"""Checks that say the same of the same numbers are one: places `i64(x[n])` and `i64(x[n]) + 1` in one dimension are computed once for both, by one pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from polyml.dtypes import boolean
from polyml.expressions import Apply, Read, reads_of, substitute
from polyml.graph.ir import Check, Equation, Graph, Op
from polyml.graph.traverse import all_ops, read_names
from polyml.renewed import renewed
from polyml.sets.affine import affine

__all__ = ["join_checks"]


def join_checks(graph: Graph) -> Graph:
    """The graph with such checks at the place of the first of them.

    Rewrite: f = any_n (p[n] < 0); raise E if f; g = any_n (p[n] < -1); raise E if g -> f = any_n (p[n] < 0 or p[n] < -1); raise E if f
    """
    checks = {op.flag.name: op for op in graph.ops if isinstance(op, Check) and op.indices is None}
    if len(checks) < 2:
        return graph
    uses = Counter(name for op in all_ops(graph.ops) if not isinstance(op, Check) for name in read_names(op))
    uses.update(tensor.name for tensor in graph.outputs)
    first: dict[tuple[str, str, frozenset[Read]], list[str]] = {}
    joined: dict[str, Equation] = {}
    gone: set[str] = set()
    for op in graph.ops:
        check = checks.get(op.result.name) if isinstance(op, Equation) else None
        if check is None or not isinstance(op, Equation) or not _is_plain(op) or uses[op.result.name]:
            continue
        known = first.setdefault((check.error, check.message, frozenset(_numbered(op))), [])
        other = next((name for name in known if _same_instances(joined[name], op)), None)
        if other is None:
            known.append(op.result.name)
            joined[op.result.name] = op
            continue
        one = joined[other]
        body = substitute(op.body, {a: affine(b) for a, b in zip(op.indices, one.indices, strict=True)})
        joined[other] = replace(one, body=Apply("or", (one.body, body), boolean))
        gone.add(op.result.name)
    made = (joined.get(op.result.name, op) if isinstance(op, Equation) else op for op in graph.ops)
    ops = renewed(graph.ops, (op for op in made if _name(op) not in gone))
    return graph if not gone else replace(graph, ops=ops)


def _is_plain(op: Equation) -> bool:
    """Whether it is nothing but whether a condition holds anywhere."""
    return op.reduce == "any" and op.base is None and op.only_if is None and op.indices == op.reduced


def _numbered(op: Equation) -> set[Read]:
    """What it reads, its indices by number."""
    numbers = {index: affine(f"i{k}") for k, index in enumerate(op.indices)}
    return set(reads_of(substitute(op.body, numbers)))


def _same_instances(one: Equation, other: Equation) -> bool:
    if len(one.indices) != len(other.indices):
        return False
    return bool(one.domain.reset_tuple_id().is_equal(other.domain.reset_tuple_id()))


def _name(op: Op) -> str:
    """The flag that a check asks for, or the tensor that an equation makes."""
    match op:
        case Check():
            return op.flag.name
        case Equation():
            return op.result.name
        case _:
            return ""

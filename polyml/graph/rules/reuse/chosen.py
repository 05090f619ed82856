"""A tensor that is made as a whole and written again under an `if`: one equation, which chooses.

`d[i] = e[i]` and `if i >= 1: d[i] -= x[i - 1]` is `d[i] = e[i] - where(i >= 1, x[i - 1], 0)`. What is one equation is stored once, may vanish into what reads it, and shares loops with it: the second one's range
is another one than that of all others around it. Only where the `if` leaves out a border, and where few elements are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads
from polyml.graph.edit import protected_names, with_ops
from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.rules.reuse.inline import is_elementwise, read_through
from polyml.graph.traverse import all_ops, equation_reads, results_of, users_of
from polyml.renewed import renewed
from polyml.sets.affine import affine
from polyml.sets.from_isl import constraints_of

__all__ = ["choose_elements"]

_MOST_CONDITIONS = 6
"""Of a box in three dimensions: each is a comparison."""

_MOST_READS = 4
"""Elements that the update reads beside its own. A wide stencil is better off without borders: its vectors are loaded under masks, or its loops cut at each of them."""

_WIDEST = 8
"""Elements that the border is wide, at most."""

_NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0}
"""What changes no number, not even the sign of a zero."""


def choose_elements(graph: Graph) -> Graph:
    """The graph with such pairs as one equation, where nothing else reads the first one's result."""
    users = users_of(graph.ops)
    protected = protected_names(graph)
    once = {name for name, count in users.items() if count == 1} - protected
    replaces = {item.final.name: item.tensor.name for item in graph.inputs if item.final is not None}
    return with_ops(graph, _block(graph.ops, once, _readers(graph.ops, protected), replaces))


def _readers(ops: tuple[Op, ...], protected: set[str]) -> dict[str, list[Equation]]:
    """The equations that read a tensor, where each of them reads the element at its own point; no tensors that must stay as they are."""
    found: dict[str, list[Equation]] = {}
    stored = set(protected)
    for op in (op for op in all_ops(ops) if isinstance(op, Equation)):
        for read in equation_reads(op):
            if op.reduce is not None or read.subscripts != tuple(map(affine, op.indices)):
                stored.add(read.tensor)
            found.setdefault(read.tensor, []).append(op)
    return {name: equations for name, equations in found.items() if name not in stored}


def _block(
    ops: tuple[Op, ...], once: set[str], readers: Mapping[str, Sequence[Equation]], replaces: Mapping[str, str]
) -> tuple[Op, ...]:
    """The ops of one block. once: names of tensors that one op uses.
    replaces: for the tensors that the loop around passes on, or that a written input holds at the end, the one whose memory they take over: what reads that may not be computed later."""
    result: list[Op | None] = []
    makers: dict[str, int] = {}
    for op in ops:
        gone = {replaces[tensor.name] for tensor in results_of(op) if tensor.name in replaces}
        match op:
            case Equation():
                position = makers.get(op.base.name) if op.base is not None else None
                maker = result[position] if position is not None else None
                chosen = _chosen(op, maker, readers.get(op.result.name, ())) if isinstance(maker, Equation) else None
                if chosen is not None and position is not None:
                    op, result[position] = chosen, None
                elif op.base is not None:
                    gone.add(op.base.name)
                if op.result.name in once and op.is_plain and is_elementwise(op):
                    makers[op.result.name] = len(result)
            case Loop():
                gone |= {c.initial.name for c in op.carried}
                body = _block(op.body, once, readers, {c.next.name: c.inner.name for c in op.carried})
                op = op if body is op.body else replace(op, body=body)
            case Check():
                pass
        result.append(op)
        if gone:
            makers = {name: k for name, k in makers.items() if not gone & _sources(result[k])}
    return renewed(ops, [op for op in result if op is not None])


def _sources(op: Op | None) -> set[str]:
    return {read.tensor for read in equation_reads(op)} if isinstance(op, Equation) else set()


def _chosen(update: Equation, maker: Equation, readers: Sequence[Equation]) -> Equation | None:
    """Both as one equation over all elements; None where that is not possible, or not worth it. readers: those of the result's elements; without any it is stored, and loops that know no borders make it
    best, behind a pass that fills it. What is filled is that only for readers that go beyond what is written then."""
    base = maker.result.name
    if update.reduce is not None or update.only_if is not None or not update.is_plain:
        return None
    own = Read(base, tuple(map(affine, update.indices)), maker.result.dtype)
    reads = set(equation_reads(update)) - {own}
    if len(reads) > _MOST_READS or any(read.tensor == base for read in reads):
        return None
    before = read_through(maker, own)
    condition = _condition(update, maker)
    if before is None or condition is None:
        return None
    values = map_reads(update.body, lambda read: before if read == own else read)
    if isinstance(before, Const) and not any(_goes_beyond(reader, update) for reader in readers):
        return None
    body = _select(condition, values, before)
    domain = maker.domain.set_tuple_name(update.result.name)
    return None if body is None else replace(update, domain=domain, body=body, base=None)


def _goes_beyond(reader: Equation, update: Equation) -> bool:
    return not reader.domain.reset_tuple_id().is_subset(update.domain.reset_tuple_id())


def _is_border(value: isl.Aff, whole: isl.Set) -> bool:
    """Whether `value >= 0` leaves out no more than a border."""
    least = whole.min_val(value)
    return least.is_int() and least.get_num_si() >= -_WIDEST


def _select(condition: Expr, values: Expr, before: Expr) -> Expr | None:
    """What is added to the first values, or multiplied, or else what changes nothing; or the one or the other, where the first is a number. None of others: what both compute is no longer shared, and
    recurrences with comparisons (semi-global matching) were given other lanes, 1.3 times as slow."""
    dtype = values.dtype
    if isinstance(before, Const):
        return Apply("select", (condition, values, before), dtype)
    if not isinstance(values, Apply) or values.op not in _NEUTRAL or values.args[0] != before:
        return None
    if not (dtype.is_float or dtype.is_integer):
        return None
    neutral = _NEUTRAL[values.op]
    chosen = Apply(
        "select", (condition, values.args[1], Const(neutral if dtype.is_float else int(neutral), dtype)), dtype
    )
    return Apply(values.op, (before, chosen), dtype)


def _condition(update: Equation, maker: Equation) -> Expr | None:
    """Which of the maker's elements are written again; None where that is not a convex part without strides."""
    whole = maker.domain.set_tuple_name(update.result.name)
    if not update.domain.is_subset(whole):
        return None
    pieces = update.domain.gist(whole).coalesce().get_basic_sets()
    if len(pieces) != 1 or pieces[0].dim(isl.dim_type.div):
        return None
    found = constraints_of(pieces[0], update.indices)
    if not 0 < len(found) <= _MOST_CONDITIONS or any(c.equality for c in found):
        return None
    if not all(_is_border(c.get_aff(), whole) for c in pieces[0].get_constraints()):
        return None
    tests = [Apply("ge", (IndexValue(c.value, i64), Const(0, i64)), boolean) for c in found]
    return reduce(lambda one, other: Apply("and", (one, other), boolean), tests[1:], tests[0])

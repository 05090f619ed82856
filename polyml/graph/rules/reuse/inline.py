"""View sinking and inlining: elementwise producers vanish into the expressions that read them.

A producer of pure accesses (transpose, slice, broadcast, pad, cast, fill) goes into all its consumers, since reading through it costs nothing. One that computes goes where
nothing is computed more than once, or where the recomputation is cheap and the tensor need not travel through memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import assert_never

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, map_reads, plain_indices, walk
from polyml.graph.edit import map_expressions, protected_names
from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.traverse import equation_reads, estimated_bytes, index_extents, is_cheap, read_names, results_of
from polyml.operation_weights import COSTLY, weight_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["inline_elementwise", "is_elementwise", "read_through", "substituted"]

_MAX_NODES = 64
"""No body grows beyond this many different nodes by inlining."""

_ALIKE = 4
"""How often a node of such a body may be written out, on average."""

_FEW = 3
"""Producers that read neighbours of what is overwritten, for which it pays to keep a copy of these: fewer are no more to store than that."""


def inline_elementwise(graph: Graph) -> Graph:
    """The graph with elementwise producers inlined; those that nothing reads any more are left to dead-code elimination."""
    uses = _Uses(graph)
    ops = _inline_block(graph.ops, {}, uses)
    return graph if ops is graph.ops else replace(graph, ops=ops)


# -- what may be read through -------------------------------------------------------------------------------------------------


def read_through(producer: Equation, read: Read) -> Expr | None:
    """The expression that gives the element of the producer's result that is read, or None when that has no such form.

    The producer must have no base and no reduction, and its target must be its plain indices in some order: then it defines each element.
    """
    values: dict[str, Subscript] = {}
    for place, subscript in zip(producer.target, read.subscripts, strict=True):
        name = place.name if isinstance(place, Affine) else None
        assert name is not None, "internal: the producer is not elementwise"
        values[name] = subscript
    return substituted(producer.body, values)


def is_elementwise(equation: Equation) -> bool:
    """True when each element of the result is the body at that element's own point."""
    if equation.reduce is not None or equation.base is not None:
        return False
    names = plain_indices(equation.target)
    return None not in names and len(set(names)) == len(names) and set(names) == set(equation.indices)


def substituted(expr: Expr, values: Mapping[str, Subscript]) -> Expr | None:
    """The expression with indices replaced; None when a gathered value would get into affine arithmetic."""
    match expr:
        case Const():
            return expr
        case IndexValue():
            place = _place(expr.affine, values)
            if place is None:
                return None
            return IndexValue(place, expr.dtype) if isinstance(place, Affine) else Apply("cast", (place,), expr.dtype)
        case Read():
            subscripts = [
                _place(s, values) if isinstance(s, Affine) else substituted(s, values) for s in expr.subscripts
            ]
            known = tuple(s for s in subscripts if s is not None)
            return Read(expr.tensor, known, expr.dtype) if len(known) == len(subscripts) else None
        case Apply():
            args = tuple(a for a in (substituted(arg, values) for arg in expr.args) if a is not None)
            return Apply(expr.op, args, expr.dtype) if len(args) == len(expr.args) else None


def _place(value: Affine, values: Mapping[str, Subscript]) -> Subscript | None:
    used = {name: values[name] for name in value.variables() if name in values}
    affine_values = {name: v for name, v in used.items() if isinstance(v, Affine)}
    if len(affine_values) == len(used):
        return value.substitute(affine_values) if used else value
    return used[value.name] if value.name is not None else None


# -- where it pays ------------------------------------------------------------------------------------------------------------


class _Uses:
    """Who reads what in the whole graph, and what updates and loops start from. memory: for the tensors that a loop passes on, or that a written input holds at the end, the tensor whose memory they should
    take over."""

    def __init__(self, graph: Graph) -> None:
        self.protected = protected_names(graph)
        self.consumers: dict[str, list[tuple[Op, int]]] = {}
        self.bases: set[str] = set()
        self.points: dict[str, int] = {}
        self.memory = {item.final.name: item.tensor.name for item in graph.inputs if item.final is not None}
        self._scan(graph.ops, 0)

    def _scan(self, ops: Sequence[Op], depth: int) -> None:
        for op in ops:
            match op:
                case Equation():
                    if op.base is not None:
                        self.bases.add(op.base.name)
                case Loop():
                    self.bases |= {c.initial.name for c in op.carried}
                    self.memory.update((c.next.name, c.inner.name) for c in op.carried)
                    self._scan(op.body, depth + 1)
                    continue
                case Check():
                    pass
            for name in read_names(op):
                self.consumers.setdefault(name, []).append((op, depth))

    def overwritten(self, op: Op) -> set[str]:
        """Names of the tensors whose memory the results take over."""
        found = {self.memory[t.name] for t in results_of(op) if t.name in self.memory}
        match op:
            case Equation():
                return found if op.base is None else found | {op.base.name}
            case Loop():
                return found | {c.initial.name for c in op.carried}
            case Check():
                return found
            case _:
                assert_never(op)

    def points_of(self, equation: Equation) -> int:
        """How many times the body of an equation is evaluated (inlining does not change it)."""
        name = equation.result.name
        if name not in self.points:
            self.points[name] = prod(index_extents(equation).values())
        return self.points[name]


@dataclass(frozen=True, slots=True)
class _Producer:
    """An equation that may be inlined. view: it only accesses; depth: of loops around it."""

    equation: Equation
    view: bool
    cheap: bool
    elements: int
    depth: int

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(read.tensor for read in equation_reads(self.equation))


def _inline_block(ops: tuple[Op, ...], outer: Mapping[str, _Producer], uses: _Uses, depth: int = 0) -> tuple[Op, ...]:
    """Inlines known producers into the ops of one block, and learns its producers on the way."""
    producers = dict(outer)
    result: list[Op] = []
    for op in ops:
        gone = uses.overwritten(op)
        match op:
            case Equation():
                op = _inline_into(op, producers, uses, depth)
                producer = _producer(op, uses, depth)
                if producer is not None:
                    producers[op.result.name] = producer
            case Loop():
                body = _inline_block(op.body, _without(producers, gone), uses, depth + 1)
                op = op if body is op.body else replace(op, body=body)
            case Check():
                pass
        result.append(op)
        producers = _without(producers, gone)
    return renewed(ops, result)


def _without(producers: dict[str, _Producer], gone: set[str]) -> dict[str, _Producer]:
    """The producers that do not read what is overwritten from here on: reading it later would force a copy of it."""
    return {name: p for name, p in producers.items() if not gone & p.sources} if gone else producers


def _producer(equation: Equation, uses: _Uses, depth: int) -> _Producer | None:
    name = equation.result.name
    if not is_elementwise(equation) or name not in uses.consumers:
        return None
    if name in uses.bases and not isinstance(equation.body, Const):
        return None
    view = _is_view(equation.body)
    cheap = is_cheap(equation.body)
    elements = max(estimated_bytes(equation.result) // equation.result.dtype.itemsize, 1)
    producer = _Producer(equation, view, cheap, elements, depth)
    # What computes is inlined into all that read it, or stays: half of it would keep both it and its sources in memory.
    if not view and (name in uses.protected or not all(_pays(producer, *c, uses) for c in uses.consumers[name])):
        return None
    return producer


def _calls_functions(body: Expr) -> bool:
    return any(isinstance(node, Apply) and weight_of(node) >= COSTLY for node in walk(body))


def _makes_integers(cast: Apply) -> bool:
    """Whether floats become integers, which takes an instruction or, where vectors have none, several for each."""
    return cast.dtype.is_integer and cast.args[0].dtype.is_float


def _is_view(body: Expr) -> bool:
    """Pure accesses: an element, a number, an index value; a cast of one; a choice between them by index values alone (a pad)."""
    match body:
        case Const() | IndexValue():
            return True
        case Read():
            return all(isinstance(s, Affine) for s in body.subscripts)
        case Apply(op="cast"):
            return _is_view(body.args[0])
        case Apply(op="select"):
            condition = all(not isinstance(n, Read) for n in walk(body.args[0]))
            return condition and _is_view(body.args[1]) and _is_view(body.args[2])
        case _:
            return False


def _inline_into(equation: Equation, producers: Mapping[str, _Producer], uses: _Uses, depth: int) -> Equation:
    names = dict.fromkeys(read.tensor for read in equation_reads(equation) if read.tensor in producers)
    chosen = {name: producers[name] for name in names if _pays(producers[name], equation, depth, uses)}
    repeated = [name for name, producer in chosen.items() if _is_repeated(producer, equation)]
    copying = [name for name in repeated if _makes_a_copy(chosen[name], equation, uses)]
    if len(copying) < _FEW:
        for name in copying:
            del chosen[name]
    if not chosen:
        return equation

    def change(read: Read) -> Expr:
        producer = chosen.get(read.tensor)
        through = read_through(producer.equation, read) if producer is not None else None
        return read if through is None else through

    changed = map_expressions(equation, lambda expr: map_reads(expr, change))
    size = _size if chosen.keys() & repeated else _written_out
    return changed if size(changed.body) <= max(_MAX_NODES, size(equation.body)) else equation


def _is_repeated(producer: _Producer, consumer: Equation) -> bool:
    """Whether the consumer uses one element of a producer that computes at several places."""
    name = producer.equation.result.name
    reads = [read for read in equation_reads(consumer) if read.tensor == name]
    return not producer.view and len(set(reads)) < len(reads)


def _makes_a_copy(producer: _Producer, consumer: Equation, uses: _Uses) -> bool:
    """Whether the consumer overwrites neighbours of its element that the producer reads: what these are before it does has to be kept."""
    equation, gone = producer.equation, uses.overwritten(consumer)
    return any(read.tensor in gone and read.subscripts != equation.target for read in equation_reads(equation))


def _written_out(body: Expr) -> int:
    return sum(1 for _ in walk(body))


def _size(body: Expr) -> int:
    """Nodes, those that are alike counted once; more where they are written out many times: a chain of squares has as many of them as it is long, and twice as many for each step in all."""
    nodes = [*walk(body)]
    return max(len(set(nodes)), len(nodes) // _ALIKE)


def _pays(producer: _Producer, consumer: Op, depth: int, uses: _Uses) -> bool:
    """Whether the producer should vanish into a consumer at this depth of loops."""
    if not isinstance(consumer, Equation):
        return False
    body = producer.equation.body
    name = producer.equation.result.name
    if producer.view and isinstance(body, Read | Const | IndexValue):
        return True  # reading through an access is free
    if producer.depth != depth:
        return False  # it would be done again in every iteration
    if producer.view and isinstance(body, Apply) and body.op == "cast" and not _makes_integers(body):
        return True
    reads = [read for read in equation_reads(consumer) if read.tensor == name]
    # What an expression uses at several places is computed once. Otherwise its name is that of a register, where both share loops: not those of a sum, nor where one waits for what the other overwrites.
    stored = consumer.reduce is not None or _makes_a_copy(producer, consumer, uses)
    times = len(set(reads) if stored and not _calls_functions(body) else reads)
    recomputed = times * uses.points_of(consumer) / producer.elements
    if producer.view:
        return recomputed <= 4
    if len(uses.consumers[name]) == 1 and recomputed <= 1:
        return True
    rank = len(producer.equation.result.shape)
    streams = sum(len(read.subscripts) == rank for read in equation_reads(producer.equation))
    small = _written_out(body) <= 8
    return producer.cheap and small and streams <= 1 and recomputed <= 2

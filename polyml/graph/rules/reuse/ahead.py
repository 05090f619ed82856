"""Operands of reductions that are computed at each of many uses: once, ahead of the reduction, into a tensor.

A matrix product reads each element of half precision as often as the other matrix has columns, and each part of a complex number twice as often; `sum[s](exp(k[s, d]) * v[s, e])` computes each
exponential as often as v has columns. Ahead of it, `f32(x[i, k])`, `real(x[i, k])` or `exp(k[s, d])` cost one pass over x or k, several sums can share it, and the product is one of plain
matrices, which can be packed.

So does a function of what a loop comes to step by step: a gate `sigmoid(g[t, i])` of a state s[i, j] is one for all j, and in each step a number for as many lanes as there are; over all steps it is a pass with lanes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Expr, IndexValue, Read, map_reads, plain_index, reads_of, variables_in, walk
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.numbers.scales import short_numbers
from polyml.graph.traverse import estimated_bytes, index_extents, is_cheap, made_within, tensors_of
from polyml.new_names import fresh_name
from polyml.renewed import renewed
from polyml.sets.affine import Affine, FloorDiv, affine

__all__ = ["USES_SHORT", "compute_once", "has_all"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay."""

USES_SHORT = 64
"""The same for a short number, with or without its scale, where it does not lie along the sum: a few instructions, in whole vectors, whenever it is packed or used."""

_BLOCK = 16
"""Elements that share a scale are a vector at least, or none: each of its lanes would look for its own."""


def compute_once(graph: Graph) -> Graph:
    """The graph with such operands of reductions made ahead of them, each once per block of ops."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    made: dict[Expr, Tensor] = {}
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            for use, source in _of_all_steps(op, tensors).items():
                if use not in made:
                    made[use], equation = _ahead(use, source, op, tensors)
                    result.append(equation)
            op = _in_steps(op, made, tensors) if made else op
            body = _block(op.body, tensors)
            result.append(op if body is op.body else replace(op, body=body))
            continue
        if isinstance(op, Equation):
            for use, source in dict.fromkeys(_worth(op, tensors)):
                if use not in made:
                    made[use], equation = _ahead(use, source, op, tensors)
                    result.append(equation)
            op = replace(op, body=_replaced(op.body, made, tensors)) if made else op
        result.append(op)
    return renewed(ops, result)


def _worth(equation: Equation, tensors: dict[str, Tensor]) -> Iterator[tuple[Apply, Tensor]]:
    """What an equation uses often, as an expression over a whole tensor, and that tensor."""
    if equation.reduce is None or not equation.reduced:
        return
    instances = prod(index_extents(equation).values())
    waiting: list[Expr] = [equation.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Apply):
            continue
        whole = _over_a_tensor(node, tensors)
        if whole is not None:
            use, read = whole
            tensor = tensors[read.tensor]
            elements = max(estimated_bytes(tensor) // tensor.dtype.itemsize, 1)
            across = _is_of_short(node) and plain_index(read.subscripts[-1]) not in equation.reduced
            if elements * (USES_SHORT if across else _USES) <= instances:
                yield use, tensor
                continue
        waiting += node.args


def _of_all_steps(loop: Loop, tensors: dict[str, Tensor]) -> dict[Apply, Tensor]:
    """What the loop's equations compute of tensors from before it and use often in each step, as expressions over a whole tensor, and these tensors."""
    inside = made_within(loop) | {c.initial.name for c in loop.carried}
    steps: dict[str, int | None] = {}
    found: dict[Apply, Tensor] = {}
    stack: list[Op] = [loop]
    while stack:
        op = stack.pop()
        if isinstance(op, Loop):
            span = op.stop - op.start
            steps[op.variable] = span.constant // op.step if span.is_constant and op.step == 1 else None
            stack += reversed(op.body)
        elif isinstance(op, Equation):
            extents = index_extents(op)
            for node in walk(op.body):
                whole = _over_a_tensor(node, tensors) if isinstance(node, Apply) else None
                if whole is None or whole[0] in found or {r.tensor for r in reads_of(node)} & inside:
                    continue
                use, read = whole
                names = variables_in(s for r in reads_of(node) for s in r.subscripts)
                uses = prod(extent for index, extent in extents.items() if index not in names)
                if uses >= _USES and _needs_most(read, tensors[read.tensor], {**steps, **extents}):
                    found[use] = tensors[read.tensor]
    return found


def _needs_most(read: Read, tensor: Tensor, extents: Mapping[str, int | None]) -> bool:
    """Whether the loop comes to at least half of each dimension, as far as is known: one of its variables or indices goes along it, one for each."""
    names: list[str] = []
    for subscript, extent in zip(read.subscripts, tensor.shape, strict=True):
        moving = (subscript - subscript.constant).name if isinstance(subscript, Affine) else None
        count = None if moving is None else extents.get(moving)
        if moving is None or count is None or (extent.is_constant and 2 * count < extent.constant):
            return False
        names.append(moving)
    return len(set(names)) == len(names)


def _in_steps(loop: Loop, made: dict[Expr, Tensor], tensors: dict[str, Tensor]) -> Loop:
    """The loop with reads of what is made ahead of it."""

    def change(equation: Equation) -> Equation:
        body = _replaced(equation.body, made, tensors)
        return equation if body is equation.body else replace(equation, body=body)

    body = map_equations(loop.body, change)
    return loop if body is loop.body else replace(loop, body=body)


def _over_a_tensor(expr: Apply, tensors: dict[str, Tensor]) -> tuple[Apply, Read] | None:
    """The expression as one over all elements of a tensor, by its indices i0, i1, ..; and what it reads of that tensor. None when it costs nothing to speak of, or has no such form.

    Other tensors may be read by some of the same indices where these have the same extents: so every element can be computed, needed or not.
    """
    converts = isinstance(expr.args[0], Read) and expr.args[0].dtype.is_half and expr.op == "cast"
    costly = expr.dtype.is_float and not is_cheap(expr)
    if not (converts or costly or expr.op in ("real", "imag") or _is_of_short(expr)):
        return None
    reads = list(dict.fromkeys(node for node in walk(expr) if isinstance(node, Read)))
    if not reads or any(isinstance(node, IndexValue) for node in walk(expr)):
        return None
    read = max(reads, key=lambda r: (len(r.subscripts), estimated_bytes(tensors[r.tensor])))
    shape = tensors[read.tensor].shape
    if not shape or not all(isinstance(s, Affine) for r in reads for s in r.subscripts):
        return None
    names = [f"i{d}" for d in range(len(shape))]
    if len(reads) == 1:
        return _rewritten(expr, {read: tuple(map(affine, names))}), read
    places = {s.name: d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and s.name is not None}
    if len(places) != len(shape):
        return None
    moved = {name: affine(names[d]) for name, d in places.items()}
    known: dict[Read, tuple[Affine, ...]] = {}
    for other in reads:
        extents = tensors[other.tensor].shape
        subscripts = [s for s in other.subscripts if isinstance(s, Affine)]
        if not all(has_all(s, extent, places, shape) for s, extent in zip(subscripts, extents, strict=True)):
            return None
        known[other] = tuple(s.substitute(moved) for s in subscripts)
    return _rewritten(expr, known), read


def _is_of_short(expr: Apply) -> bool:
    """Whether it is a short number as a float, or that and others multiplied, as weights that are stored in bytes are by the scale of their block."""
    return expr.op in ("cast", "mul", "add", "sub") and expr.dtype.is_float and bool(short_numbers(expr))


def has_all(place: Affine, extent: Affine, places: Mapping[str, int], shape: Sequence[Affine]) -> bool:
    """Whether a dimension of that extent has an element for each value of an index that goes through one of this shape: the index itself, or its quotient."""
    match place.terms:
        case ((str(name), 1),) if place.constant == 0 and name in places:
            return shape[places[name]] == extent
        case ((FloorDiv(numerator=Affine(name=str(name)), denominator=block), 1),) if place.constant == 0:
            if name not in places or block % _BLOCK or not extent.is_constant:
                return False
            whole = shape[places[name]]
            return whole.is_constant and (whole.constant - 1) // block < extent.constant
        case _:
            return False


def _rewritten(expr: Apply, subscripts: dict[Read, tuple[Affine, ...]]) -> Apply:
    made = map_reads(expr, lambda read: Read(read.tensor, subscripts[read], read.dtype))
    assert isinstance(made, Apply), "internal: an operation stays one"
    return made


def _ahead(use: Apply, source: Tensor, op: Equation | Loop, tensors: dict[str, Tensor]) -> tuple[Tensor, Equation]:
    name = fresh_name(f"{source.name}_{use.op if use.op != 'cast' else use.dtype.name}", tensors)
    tensor = tensors[name] = Tensor(name, use.dtype, source.shape, source.label)
    return tensor, fill(tensor, use, op.span)


def _replaced(expr: Expr, made: dict[Expr, Tensor], tensors: dict[str, Tensor]) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    whole = _over_a_tensor(expr, tensors)
    if whole is not None and (tensor := made.get(whole[0])) is not None:
        return Read(tensor.name, whole[1].subscripts, tensor.dtype)
    return expr.with_args(_replaced(arg, made, tensors) for arg in expr.args)

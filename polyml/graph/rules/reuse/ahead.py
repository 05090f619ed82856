"""Operands of reductions that are computed at each of many uses: once, ahead of the reduction, into a tensor.

A matrix product reads each element of half precision as often as the other matrix has columns, and each part of a complex number twice as often; `sum[s](exp(k[s, d]) * v[s, e])` computes each
exponential as often as v has columns. Ahead of it, `f32(x[i, k])`, `real(x[i, k])` or `exp(k[s, d])` cost one pass over x or k, several sums can share it, and the product is one of plain
matrices, which can be packed.

Arithmetic that is cheap goes ahead, too, where it stands between a sum and an operand, of several tensors or of one: `(x[n, i] - m[i]) * (x[n, j] - m[j])` has an instruction or two for each multiply-add, and no operands to pack; with `z[n, d] = x[n, d] - m[d]` it is a product of
matrices, of which panels make z while they are packed where it would go through memory (schedule/prologues.py, schedule/blocking/makers.py). What is made of vectors alone (`exp(-abs(t[i] - s[k])) * v[k, j]`) becomes a matrix.

So does a function of what a loop comes to step by step: a gate `sigmoid(g[t, i])` of a state s[i, j] is one for all j, and in each step a number for as many lanes as there are; over all steps it is a pass with lanes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from polyml.expressions import (
    Apply,
    Expr,
    IndexValue,
    Read,
    Subscript,
    has_index_values,
    map_reads,
    ops_in,
    plain_index,
    reads_of,
    variables_in,
    walk,
)
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.numbers.scales import short_numbers
from polyml.graph.traverse import estimated_bytes, index_extents, is_cheap, made_within, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, FloorDiv, affine

__all__ = ["USES_SHORT", "Whole", "compute_once", "has_all", "over_a_tensor"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay."""

USES_SHORT = 64
"""The same for a short number, with or without its scale, where it does not lie along the sum: a few instructions, in whole vectors, whenever it is packed or used."""

USES_BESIDE = 4
"""How often the elements of other operands must be used for cheap arithmetic to count: a sum that reads them once waits for memory, and computes meanwhile."""

_BLOCK = 16
"""Elements that share a scale are a vector at least, or none: each of its lanes would look for its own."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An expression over all elements of a tensor. use: by that tensor's indices i0, i1, ..; place: the element that it is computed for where it stands; shape, label: of the tensor; source: what names it."""

    use: Apply
    place: tuple[Subscript, ...]
    shape: tuple[Affine, ...]
    label: str
    source: str

    @property
    def elements(self) -> int:
        return max(estimated_bytes(Tensor("", self.use.dtype, self.shape, "")) // self.use.dtype.itemsize, 1)


def compute_once(graph: Graph, *, cheap: bool = False) -> Graph:
    """The graph with such operands of reductions made ahead of them, each once per block of ops. cheap: of cheap arithmetic, too."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors, cheap)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor], cheap: bool) -> tuple[Op, ...]:
    made: dict[Apply, Tensor] = {}
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            for use, whole in _of_all_steps(op, tensors).items():
                if use not in made:
                    made[use], equation = _ahead(whole, op, tensors)
                    result.append(equation)
            op = _in_steps(op, made, tensors) if made else op
            body = _block(op.body, tensors, cheap)
            result.append(op if body is op.body else replace(op, body=body))
            continue
        if isinstance(op, Equation):
            wanted = {whole.use: whole for whole in _worth(op, tensors, cheap)}
            if _operands(op.body, wanted, tensors) > _operands(op.body, {}, tensors):
                # Of several forms of an element in one sum the cheap ones are as near as more operands.
                wanted = {use: whole for use, whole in wanted.items() if _costs(use)}
            for use, whole in wanted.items():
                if use not in made:
                    made[use], equation = _ahead(whole, op, tensors)
                    result.append(equation)
            # What is cheap is read only where it is worth it.
            known = {use: tensor for use, tensor in made.items() if use in wanted or _costs(use)}
            op = replace(op, body=_replaced(op.body, known, tensors)) if known else op
        result.append(op)
    return renewed(ops, result)


def _worth(equation: Equation, tensors: dict[str, Tensor], cheap: bool) -> Iterator[Whole]:
    """What an equation uses often, as expressions over whole tensors."""
    if equation.reduce is None or not equation.reduced:
        return
    instances = prod(index_extents(equation).values())
    product = {id(node) for node in _products(equation.body)} if equation.reduce == "sum" else set[int]()
    waiting: list[Expr] = [equation.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Apply):
            continue
        if _costs(node):
            whole = over_a_tensor(node, tensors)
            if whole is not None:
                across = _is_of_short(node) and plain_index(whole.place[-1]) not in equation.reduced
                if whole.elements * (USES_SHORT if across else _USES) <= instances:
                    yield whole
                    continue
        elif cheap and equation.only_if is None and id(node) not in product and _is_arithmetic(node):
            whole = over_a_tensor(node, tensors)
            if whole is not None and _is_used_often(whole, equation, instances, tensors):
                yield whole
                continue
        waiting += node.args


def _operands(expr: Expr, ahead: Mapping[Apply, Whole], tensors: Mapping[str, Tensor]) -> int:
    """How many different elements the expression reads, with these made ahead of it."""
    found: set[object] = set()
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Read):
            found.add(node)
        elif isinstance(node, Apply):
            whole = over_a_tensor(node, tensors) if ahead else None
            if whole is not None and whole.use in ahead:
                found.add((whole.use, whole.place))
            else:
                waiting += node.args
    return len(found)


def _products(expr: Expr) -> Iterator[Expr]:
    """The multiplications of a product's factors: in which order these go is for others to say (rules/sums/nested.py, rules/sums/factors_ahead.py)."""
    if isinstance(expr, Apply) and expr.op == "mul":
        yield expr
        for arg in expr.args:
            yield from _products(arg)


def _is_arithmetic(expr: Apply) -> bool:
    """Whether it computes a number, more than another form of one."""
    computes = ops_in(expr) - {"cast"}
    return expr.dtype.is_float and not expr.dtype.is_half and bool(computes) and not short_numbers(expr)


def _is_used_often(whole: Whole, equation: Equation, instances: int, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a pass over all elements costs less than computing them at each use, and the sum does not wait for memory meanwhile."""
    own = variables_in(whole.place)
    beside = [
        estimated_bytes(tensors[r.tensor]) // tensors[r.tensor].dtype.itemsize
        for r in reads_of(equation.body)
        if not variables_in(r.subscripts) <= own
    ]
    return bool(beside) and whole.elements * _USES <= instances and max(beside) * USES_BESIDE <= instances


def _of_all_steps(loop: Loop, tensors: dict[str, Tensor]) -> dict[Apply, Whole]:
    """What the loop's equations compute of tensors from before it and use often in each step, as expressions over a whole tensor."""
    inside = made_within(loop) | {c.initial.name for c in loop.carried}
    steps: dict[str, int | None] = {}
    found: dict[Apply, Whole] = {}
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
                if not isinstance(node, Apply) or not _costs(node) or any(r.tensor in inside for r in reads_of(node)):
                    continue
                whole = over_a_tensor(node, tensors)
                if whole is None or whole.use in found:
                    continue
                names = variables_in(s for r in reads_of(node) for s in r.subscripts)
                uses = prod(extent for index, extent in extents.items() if index not in names)
                if uses >= _USES and _needs_most(whole, {**steps, **extents}):
                    found[whole.use] = whole
    return found


def _needs_most(whole: Whole, extents: Mapping[str, int | None]) -> bool:
    """Whether the loop comes to at least half of each dimension, as far as is known: one of its variables or indices goes along it, one for each."""
    names: list[str] = []
    for subscript, extent in zip(whole.place, whole.shape, strict=True):
        moving = (subscript - subscript.constant).name if isinstance(subscript, Affine) else None
        count = None if moving is None else extents.get(moving)
        if moving is None or count is None or (extent.is_constant and 2 * count < extent.constant):
            return False
        names.append(moving)
    return len(set(names)) == len(names)


def _in_steps(loop: Loop, made: Mapping[Apply, Tensor], tensors: dict[str, Tensor]) -> Loop:
    """The loop with reads of what is made ahead of it."""

    def change(equation: Equation) -> Equation:
        body = _replaced(equation.body, made, tensors)
        return equation if body is equation.body else replace(equation, body=body)

    body = map_equations(loop.body, change)
    return loop if body is loop.body else replace(loop, body=body)


def _costs(expr: Apply) -> bool:
    """Whether it costs something to speak of wherever it is computed."""
    converts = isinstance(expr.args[0], Read) and expr.args[0].dtype.is_half and expr.op == "cast"
    costly = expr.dtype.is_float and not is_cheap(expr)
    return converts or costly or expr.op in ("real", "imag") or _is_of_short(expr)


def over_a_tensor(expr: Apply, tensors: Mapping[str, Tensor], sizes: Set[str] = frozenset()) -> Whole | None:
    """The expression as one over all elements of a tensor that it reads, or of one with all indices of several. None when it has no such form. sizes: what it may compute with as well.

    Other tensors may be read by some of the same indices where these have the same extents: so every element can be computed, needed or not.
    """
    if has_index_values(expr) and any(
        isinstance(n, IndexValue) and not n.affine.variables() <= sizes for n in walk(expr)
    ):
        return None
    reads = list(dict.fromkeys(reads_of(expr)))
    if not reads:
        return None
    read = max(reads, key=lambda r: (len(r.subscripts), estimated_bytes(tensors[r.tensor])))
    source = tensors[read.tensor]
    if not all(isinstance(s, Affine) for r in reads for s in r.subscripts):
        return None
    if len(reads) == 1:
        return (
            _of(expr, {read: _elements(len(source.shape))}, read.subscripts, source.shape, source)
            if source.shape
            else None
        )
    hosted = {s.name for s in read.subscripts if isinstance(s, Affine)} >= variables_in(
        s for r in reads for s in r.subscripts
    )
    place, shape = (read.subscripts, source.shape) if hosted else _all_indices(reads, tensors)
    places = {s.name: d for d, s in enumerate(place) if isinstance(s, Affine) and s.name is not None}
    if not shape or len(places) != len(shape):
        return None
    names = _elements(len(shape))
    moved = {name: names[d] for name, d in places.items()}
    known: dict[Read, tuple[Affine, ...]] = {}
    for other in reads:
        extents = tensors[other.tensor].shape
        subscripts = [s for s in other.subscripts if isinstance(s, Affine)]
        if not all(has_all(s, extent, places, shape) for s, extent in zip(subscripts, extents, strict=True)):
            return None
        known[other] = tuple(s.substitute(moved) for s in subscripts)
    return _of(expr, known, place, shape, source)


def _all_indices(
    reads: Sequence[Read], tensors: Mapping[str, Tensor]
) -> tuple[tuple[Subscript, ...], tuple[Affine, ...]]:
    """The indices by which tensors are read, each once, and the extents of what they go through: of an outer difference, say."""
    found: dict[Affine, Affine] = {}
    for read in reads:
        for s, extent in zip(read.subscripts, tensors[read.tensor].shape, strict=True):
            if isinstance(s, Affine) and s.name is not None:
                found.setdefault(s, extent)
    return tuple(found), tuple(found.values())


def _elements(rank: int) -> tuple[Affine, ...]:
    return tuple(affine(f"i{d}") for d in range(rank))


def _of(
    expr: Apply,
    subscripts: Mapping[Read, tuple[Affine, ...]],
    place: tuple[Subscript, ...],
    shape: tuple[Affine, ...],
    source: Tensor,
) -> Whole:
    made = map_reads(expr, lambda read: Read(read.tensor, subscripts[read], read.dtype))
    assert isinstance(made, Apply), "internal: an operation stays one"
    return Whole(made, place, shape, source.label, source.name)


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


def _ahead(whole: Whole, op: Equation | Loop, tensors: dict[str, Tensor]) -> tuple[Tensor, Equation]:
    use = whole.use
    name = fresh_name(f"{whole.source}_{use.op if use.op != 'cast' else use.dtype.name}", tensors)
    tensor = tensors[name] = Tensor(name, use.dtype, whole.shape, whole.label)
    return tensor, fill(tensor, use, op.span)


def _replaced(expr: Expr, made: Mapping[Apply, Tensor], tensors: Mapping[str, Tensor]) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    whole = over_a_tensor(expr, tensors)
    if whole is not None and (tensor := made.get(whole.use)) is not None:
        return Read(tensor.name, whole.place, tensor.dtype)
    return expr.with_args(_replaced(arg, made, tensors) for arg in expr.args)

"""Questions about ops that several graph stages ask: what an op reads and makes, and how large tensors and domains are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

import islpy as isl

from polyml.expressions import Expr, Read, ops_in, plain_indices, reads_of
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.sets.affine import Affine
from polyml.sets.from_isl import integer

__all__ = [
    "LARGEST_TABLE",
    "UNKNOWN_EXTENT",
    "all_ops",
    "equation_reads",
    "estimated_bytes",
    "followed_index",
    "index_extents",
    "indices_of",
    "is_cheap",
    "made_within",
    "read_names",
    "results_of",
    "tensors_of",
    "users_of",
]

_CHEAP = frozenset(
    "add sub mul neg abs min max eq ne lt le gt ge and or not select cast relu complex real imag".split()
)

LARGEST_TABLE = 64 << 20
"""Most bytes of a table of what could be computed where it is used."""

UNKNOWN_EXTENT = 1024
"""What a symbolic extent counts as, where costs are estimated."""


def equation_reads(equation: Equation) -> list[Read]:
    """All reads of the body and of the target's expressions, in the order of the text (the base is not among them)."""
    expressions: list[Expr] = [equation.body, *(s for s in equation.target if not isinstance(s, Affine))]
    return [read for expression in expressions for read in reads_of(expression)]


def read_names(op: Op) -> dict[str, None]:
    """Names of the tensors from outside the op whose value it uses, in order (a dict as an ordered set)."""
    match op:
        case Check():
            return {op.flag.name: None}
        case Equation():
            names = dict.fromkeys(read.tensor for read in equation_reads(op))
            names |= {} if op.only_if is None else {op.only_if.name: None}
            return names if op.base is None else {op.base.name: None} | names
        case Loop():
            names = dict.fromkeys(carried.initial.name for carried in op.carried)
            inside = {carried.inner.name for carried in op.carried}
            for nested in op.body:
                names.update((name, None) for name in read_names(nested) if name not in inside)
                inside.update(tensor.name for tensor in results_of(nested))
            names.update((carried.next.name, None) for carried in op.carried if carried.next.name not in inside)
            return names
        case _:
            assert_never(op)


def users_of(ops: Iterable[Op]) -> Counter[str]:
    """How many of the ops, those in loop bodies too, use the value of each tensor."""
    return Counter(name for op in all_ops(ops) for name in read_names(op))


def results_of(op: Op) -> tuple[Tensor, ...]:
    """The tensors that the op makes for what follows it."""
    match op:
        case Check():
            return ()
        case Equation():
            return (op.result,)
        case Loop():
            return tuple(carried.result for carried in op.carried)
        case _:
            assert_never(op)


def made_within(loop: Loop) -> set[str]:
    """Names of the tensors that are made in the loop, at any depth, and of those that it makes for what follows."""
    names = {c.inner.name for c in loop.carried} | {c.result.name for c in loop.carried}
    for op in loop.body:
        names |= made_within(op) if isinstance(op, Loop) else {tensor.name for tensor in results_of(op)}
    return names


def all_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those in loop bodies, in written order; a loop comes before its body."""
    for op in ops:
        yield op
        if isinstance(op, Loop):
            yield from all_ops(op.body)


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """Every tensor of the graph by name: inputs, results, and what loops carry."""
    found = {item.tensor.name: item.tensor for item in graph.inputs}
    for op in all_ops(graph.ops):
        if isinstance(op, Equation):
            found[op.result.name] = op.result
        elif isinstance(op, Loop):
            for carried in op.carried:
                found[carried.inner.name] = carried.inner
                found[carried.result.name] = carried.result
    return found


def estimated_bytes(tensor: Tensor) -> int:
    """The size of a tensor in bytes, with UNKNOWN_EXTENT for symbolic extents."""
    total = tensor.dtype.itemsize
    for extent in tensor.shape:
        total *= extent.constant if extent.is_constant else UNKNOWN_EXTENT
    return total


def index_extents(equation: Equation) -> dict[str, int]:
    """How many values each index takes, over all values of the parameters (UNKNOWN_EXTENT when unbounded)."""
    domain = equation.domain
    return {name: _extent(domain, position) for position, name in enumerate(equation.indices)}


def _extent(domain: isl.Set, position: int) -> int:
    low, high = domain.dim_min_val(position), domain.dim_max_val(position)
    if not (low.is_int() and high.is_int()):
        return UNKNOWN_EXTENT
    return max(integer(high) - integer(low) + 1, 0)


def is_cheap(expr: Expr) -> bool:
    """True when evaluating the expression again costs about as little as loading its value."""
    return ops_in(expr) <= _CHEAP


def indices_of(read: Read) -> tuple[str, ...]:
    """The index in each dimension; nothing where one of them is anything else, or in two."""
    names = plain_indices(read.subscripts)
    plain = None not in names and len(set(names)) == len(names)
    return tuple(name for name in names if name is not None) if plain else ()


def followed_index(subscript: object, names: Sequence[str]) -> tuple[str, int] | None:
    """The one index of `names` that the subscript follows (`i`, `i + 3`, `2*i + t` for other names), and how many places it goes at a step; None: several, none, or backwards."""
    if not isinstance(subscript, Affine):
        return None
    used = [name for name in names if name in subscript.variables()]
    step = subscript.stride(used[0]) if len(used) == 1 else None
    return (used[0], step) if step is not None and step > 0 else None

"""Several registers whose lanes are combined, each into a number of its own: four of them together, the lanes of all in one vector.

One register with 16 lanes takes four shuffles and four additions, of which the last work for one lane. Four registers, halved until they have four lanes each, are interleaved two by two: three instructions of whole
vectors in place of four for each pair, and the results are neighbours in a vector, as they will be in memory.

Registers of argmin or argmax and their indices are combined so as well, twice: the best of all lanes, then the smallest index that has it, where -1, of a lane that has seen nothing and so is no better than any other, is the largest one. That is where no lane has seen NaN; else one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from polyml.codegen.llvm.arithmetic import ARITHMETIC
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import BIT, Value, constant
from polyml.codegen.llvm.reductions.combine import (
    assign,
    combine,
    keep_better,
    read_place,
    update_argument,
    write_place,
)
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, Node, UpdateArgument
from polyml.dtypes import DType, u32, u64
from polyml.expressions import Read

__all__ = ["best_of_run", "combine_run", "run_across", "run_of_arguments"]

_UNSIGNED = {32: u32, 64: u64}
"""Indices of which -1 is the largest."""

_TOGETHER = 4
"""Registers whose lanes are combined together: so many numbers of four bytes are the shortest vector."""


def run_across(state: State, nodes: Sequence[Node]) -> tuple[Assign, ...]:
    """The first nodes, as many as combine the lanes of registers of one kind, each into another register."""
    found: list[Assign] = []
    targets: set[str] = set()
    for node in nodes:
        if not isinstance(node, Assign) or not _is_plain(state, node) or node.target.variable in targets:
            break
        if found and _kind(state, node) != _kind(state, found[0]):
            break
        found.append(node)
        targets.add(node.target.variable)
    return tuple(found)


def combine_run(state: State, run: Sequence[Assign], after: Sequence[Node]) -> None:
    """Carries out these nodes, a few at a time in the order in which nodes `after` them store the results."""
    stored = [n.value.tensor for n in after if isinstance(n, Assign) and isinstance(n.value, Read)]
    place = {name: k for k, name in reversed(list(enumerate(stored)))}
    ordered = sorted(run, key=lambda node: place.get(node.target.variable, len(stored)))
    for start in range(0, len(ordered), _TOGETHER):
        _combine(state, ordered[start : start + _TOGETHER])


def _is_plain(state: State, node: Assign) -> bool:
    """Whether it combines the lanes of a register, at least as many as are combined together, with a number in another one."""
    if not node.across or state.lanes is not None or not isinstance(node.value, Read):
        return False
    target, value = state.slots[node.target.variable].variable, state.slots[node.value.tensor].variable
    plain = target.dtype == value.dtype and not target.dtype.is_complex and target.dtype.itemsize in (4, 8)
    return plain and target.scope == value.scope == "register" and target.lanes == 1 and value.lanes >= _TOGETHER


def _kind(state: State, node: Assign) -> tuple[str | None, DType, int]:
    assert isinstance(node.value, Read), "internal: no register's lanes"
    value = state.slots[node.value.tensor].variable
    return node.reduction, value.dtype, value.lanes


def _combine(state: State, nodes: Sequence[Assign]) -> None:
    """Four of these nodes at most: with x' and y' for what is left of the registers x and y, halves of (x, y, x', y') and (z, w, z', w') are combined at last."""
    b, reduction = state.builder, nodes[0].reduction or ""
    dtype = state.slots[nodes[0].target.variable].variable.dtype
    if len(nodes) == 1:
        assign(state, nodes[0])
        return
    total = _together(state, reduction, [evaluate(state, node.value) for node in nodes], dtype)
    old = b.splat(read_place(state, nodes[0].target), total.lanes)
    for lane, node in enumerate(nodes[1:], 1):
        value = read_place(state, node.target)
        old = b.emit(old.type, f"insertelement {old}, {value}, i32 {lane}")
    total = combine(state, reduction, old, total, dtype)
    for lane, node in enumerate(nodes):
        write_place(state, node.target, b.extract(total, lane))


def _together(state: State, reduction: str, registers: Sequence[Value], dtype: DType) -> Value:
    """The lanes of two to four registers combined, the results in the first lanes of a vector."""
    b = state.builder
    values = [_halved(state, reduction, register, dtype) for register in registers]
    total = _pair(state, reduction, values[0], values[1], dtype)
    if len(values) == 2:
        return combine(state, reduction, b.shuffle(total, (0, 1)), b.shuffle(total, (2, 3)), dtype)
    other = _pair(state, reduction, values[2], values[-1], dtype)
    low, high = b.shuffle(total, (0, 1, 4, 5), other), b.shuffle(total, (2, 3, 6, 7), other)
    return combine(state, reduction, low, high, dtype)


def run_of_arguments(state: State, nodes: Sequence[Node]) -> tuple[UpdateArgument, ...]:
    """The first nodes, as many as choose among the lanes of registers of one kind."""
    found: list[UpdateArgument] = []
    for node in nodes:
        if not isinstance(node, UpdateArgument) or not _chooses(state, node):
            break
        if found and (node.kind, _types(state, node)) != (found[0].kind, _types(state, found[0])):
            break
        found.append(node)
    return tuple(found)


def _chooses(state: State, node: UpdateArgument) -> bool:
    if not node.across or state.lanes is not None:
        return False
    reads = (node.candidate, node.candidate_index)
    if not all(isinstance(read, Read) and not read.subscripts for read in reads):
        return False
    value, index = _types(state, node)
    return value[0].itemsize in (4, 8) and value[1] == index[1] >= _TOGETHER


def _types(state: State, node: UpdateArgument) -> list[tuple[DType, int]]:
    """Of the candidates and their indices: what they are, and how many lanes there are."""
    variables = [state.slots[r.tensor].variable for r in (node.candidate, node.candidate_index) if isinstance(r, Read)]
    return [(v.dtype, v.lanes if v.scope == "register" else 0) for v in variables]


def best_of_run(state: State, run: Sequence[UpdateArgument]) -> None:
    """Carries out these nodes: a few at a time where no lane has seen NaN, else one by one."""
    b = state.builder
    pairs = [(evaluate(state, node.candidate), evaluate(state, node.candidate_index)) for node in run]
    if not state.slots[run[0].best.variable].variable.dtype.is_float:
        _best_of_numbers(state, run, pairs)
        return
    neighbours = zip(pairs[::2], pairs[1::2] + pairs[-1:] * (len(pairs) % 2), strict=True)
    numbers = reduce(
        lambda one, other: b.binary("and", one, other), (b.compare("ord", x, y) for (x, _), (y, _) in neighbours)
    )
    usual = b.intrinsic("vector.reduce.and", numbers, result=BIT)
    together, single, after = b.fresh("together"), b.fresh("single"), b.fresh("after")
    b.branch(b.negate(usual), single, together, rare=True)
    b.start(together)
    _best_of_numbers(state, run, pairs)
    b.jump(after)
    b.start(single)
    for node in run:
        update_argument(state, node)
    b.jump(after)
    b.start(after)


def _best_of_numbers(state: State, run: Sequence[UpdateArgument], pairs: Sequence[tuple[Value, Value]]) -> None:
    for start in range(0, len(run), _TOGETHER):
        _best(state, run[start : start + _TOGETHER], pairs[start : start + _TOGETHER])


def _best(state: State, nodes: Sequence[UpdateArgument], pairs: Sequence[tuple[Value, Value]]) -> None:
    """Two to four of these nodes, or one, without NaN."""
    b, reduction = state.builder, {"argmax": "max", "argmin": "min"}[nodes[0].kind]
    (dtype, _), _ = _types(state, nodes[0])
    padded = [*pairs, *pairs[-1:]] if len(pairs) == 1 else pairs
    before, state.numbers = state.numbers, dtype.is_float
    best = _together(state, reduction, [value for value, _ in padded], dtype)
    state.numbers = before
    none = constant(pairs[0][1].type, -1)
    places = [
        b.select(ARITHMETIC["eq"](b, (value, b.splat(b.extract(best, lane), value.lanes)), dtype), index, none)
        for lane, (value, index) in enumerate(padded)
    ]
    first = _together(state, "min", places, _UNSIGNED[none.type.bits])
    for lane, node in enumerate(nodes):
        keep_better(state, node, b.extract(best, lane), b.extract(first, lane))


def _halved(state: State, reduction: str, value: Value, dtype: DType) -> Value:
    """Lanes combined with those half a vector further on, until so many are left as registers are combined together."""
    b = state.builder
    while value.lanes > _TOGETHER:
        half = value.lanes // 2
        low, high = b.shuffle(value, range(half)), b.shuffle(value, range(half, value.lanes))
        value = combine(state, reduction, low, high, dtype)
    return value


def _pair(state: State, reduction: str, x: Value, y: Value, dtype: DType) -> Value:
    """The lanes of both in turns, each combined with one of the two others: of halves, or of neighbours where elements are so wide that four of them are two of the parts in which vectors are interleaved."""
    b = state.builder
    first, second = ((0, 4, 2, 6), (1, 5, 3, 7)) if dtype.itemsize > 4 else ((0, 4, 1, 5), (2, 6, 3, 7))
    return combine(state, reduction, b.shuffle(x, first, y), b.shuffle(x, second, y), dtype)

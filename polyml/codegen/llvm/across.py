"""Several registers whose lanes are combined, each into a number of its own: four of them together, the lanes of all in one vector.

One register with 16 lanes takes four shuffles and four additions, of which the last work for one lane. Four registers, halved until they have four lanes each, are interleaved two by two: three instructions of whole
vectors in place of four for each pair, and the results are neighbours in a vector, as they will be in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Value
from polyml.codegen.llvm.reductions import assign, combine, read_place, write_place
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, Node
from polyml.dtypes import DType
from polyml.expressions import Read

__all__ = ["combine_run", "run_across"]

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
    values = [_halved(state, reduction, evaluate(state, node.value), dtype) for node in nodes]
    total = _pair(state, reduction, values[0], values[1], dtype)
    if len(values) == 2:
        total = combine(state, reduction, b.shuffle(total, (0, 1)), b.shuffle(total, (2, 3)), dtype)
    else:
        other = _pair(state, reduction, values[2], values[-1], dtype)
        total = combine(
            state, reduction, b.shuffle(total, (0, 1, 4, 5), other), b.shuffle(total, (2, 3, 6, 7), other), dtype
        )
    old = b.splat(read_place(state, nodes[0].target), total.lanes)
    for lane, node in enumerate(nodes[1:], 1):
        value = read_place(state, node.target)
        old = b.emit(old.type, f"insertelement {old}, {value}, i32 {lane}")
    total = combine(state, reduction, old, total, dtype)
    for lane, node in enumerate(nodes):
        write_place(state, node.target, b.extract(total, lane))


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

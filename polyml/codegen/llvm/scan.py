"""Recurrences in lanes: what a `Scan` computes, and where its carry lives."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.llvm.arithmetic import multiply_add
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Type, Value, constant
from polyml.codegen.llvm.reductions import combine, masked, read_place, write_place
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, If, Place, Scan, Variable
from polyml.codegen.rewrite import walk_nodes
from polyml.ops import REDUCTIONS

__all__ = ["assign_scanned", "with_lanes"]

_WIDE = 512
"""Bits of a vector of AVX-512."""


def with_lanes(node: Allocate) -> Variable:
    """The variable; the carry of scans holds its value in every lane, so that a vector waits for one multiply-add of the one before, and for no shuffle."""
    variable = node.variable
    if variable.scope != "register" or variable.shape or variable.lanes > 1:
        return variable
    match node.body:
        case (Assign(target=Place(variable=first)), *rest) | (
            If(then=(Assign(target=Place(variable=first)), *rest)),
        ) if first == variable.name:
            widths = {loop.width for loop in walk_nodes(rest) if isinstance(loop, For) and _carries(loop, first)}
            return replace(variable, lanes=widths.pop()) if len(widths) == 1 else variable
        case _:
            return variable


def _carries(loop: For, name: str) -> bool:
    """Whether a scan right in the loop moves that carry on."""
    return loop.kind == "vector" and any(
        isinstance(inner, Assign) and inner.scan is not None and inner.scan.carry == name
        for inner in walk_nodes(loop.body)
    )


def assign_scanned(state: State, node: Assign, scan: Scan) -> None:
    """Writes the values of a recurrence in all lanes, from those of its inhomogeneous part; the carry moves on to the last lane's.

    Pairs (multiplier, value) of affine functions are composed over 1, 2, 4, ... lanes (Kogge and Stone, "A parallel algorithm for the efficient solution
    of a general class of recurrence equations", IEEE Trans. Computers, 1973); lanes that do not act hand on what they get.
    """
    b, width, reduction = state.builder, state.width, node.reduction or "sum"
    slot = state.slots[scan.carry]
    dtype = slot.variable.dtype
    identity = REDUCTIONS[reduction].identity(dtype)
    assert identity is not None, "internal: a scan of argmax or argmin"
    value = masked(state, replace(node, reduction=reduction), evaluate(state, node.value), dtype)
    neutral = _neutral(state, value.type, reduction, identity)
    factor = None if scan.factor is None else b.splat(evaluate(state, scan.factor), width)
    one = constant(value.type, 1)
    if factor is not None and state.lanes is not None and state.lanes.mask is not None:
        factor = b.select(state.lanes.mask, factor, one)
    step = 1
    while step < width:
        before = _earlier(b, value, step, neutral)
        if factor is None:
            value = combine(state, reduction, before, value, dtype)
        else:
            value = multiply_add(b, factor, before, value)
            factor = b.arithmetic("mul", factor, _earlier(b, factor, step, one))
        step *= 2
    carry = read_place(state, Place(scan.carry, ()))
    # The last lane by itself, with the same operation: all that the next vector waits for.
    last = _last(b, value, carry.lanes)
    if factor is None:
        following = combine(state, reduction, carry, last, dtype)
        value = combine(state, reduction, b.splat(carry, width), value, dtype)
    else:
        following = multiply_add(b, _last(b, factor, carry.lanes), carry, last)
        value = multiply_add(b, factor, b.splat(carry, width), value)
    b.write(f"store {following}, {slot.pointer}, align {dtype.alignment}")
    write_place(state, node.target, value, streaming=node.streaming, aligned=node.aligned)


def _earlier(b: Builder, value: Value, step: int, before: Value) -> Value:
    """The lanes moved up by `step`; the first ones are those of `before`."""
    lanes = value.lanes
    return b.shuffle(value, [lanes + k if k < step else k - step for k in range(lanes)], before)


def _neutral(state: State, type_: Type, reduction: str, identity: float) -> Value:
    """The reduction's identity in all lanes. Of wide vectors LLVM does not know it: with a constant it moves lanes by vexpand, two instructions of the one unit that shuffles, instead of one."""
    known = constant(type_, identity)
    if type_.lanes * type_.bits < _WIDE or not type_.is_float:
        return known
    found = state.unforeseen.get(known)
    if found is None:
        b, element = state.builder, type_.of(1)
        name = f"polyml_{reduction}_{element.element}"
        b.module.definitions.setdefault(name, f"@{name} = internal global {constant(element, identity)}")
        with b.into(state.entry):
            found = b.splat(b.emit(element, f"load volatile {element}, ptr @{name}"), type_.lanes)
        state.unforeseen[known] = found
    return found


def _last(b: Builder, value: Value, lanes: int) -> Value:
    """The last lane, once or in as many lanes."""
    if lanes == 1:
        return b.extract(value, value.lanes - 1)
    return b.shuffle(value, [value.lanes - 1] * lanes)

"""Recurrences in lanes: what a `Scan` of first order computes, and where its carry lives (second_order_scan.py: those of second order)."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import Builder, Type, Value, constant, type_of
from polyml.codegen.llvm.memory.known_elements import forget_register
from polyml.codegen.llvm.reductions.combine import masked, read_place, write_place
from polyml.codegen.llvm.reductions.scan_lanes import (
    earlier_bits,
    in_halves,
    lanes_with,
    last_lane,
    neutral_lanes,
    resets,
    sources_of,
    taken_from,
)
from polyml.codegen.llvm.reductions.scan_steps import (
    Steps,
    beyond_products,
    beyond_sums,
    finite,
    is_harmless,
    settled,
    stays_normal,
    step_by_step,
)
from polyml.codegen.llvm.reductions.second_order_scan import assign_second_order, second_order_numbers
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, If, Place, Scan, Variable
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Expr
from polyml.ops import REDUCTIONS

__all__ = ["assign_scanned", "scan_numbers", "with_lanes"]


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
        isinstance(inner, Assign) and inner.scan is not None and inner.scan.carries == (name,)
        for inner in walk_nodes(loop.body)
    )


def assign_scanned(state: State, node: Assign, scan: Scan) -> None:
    """Writes the values of a recurrence in all lanes, from those of its inhomogeneous part; the carry moves on to the last lane's.

    Pairs (factor, value) of functions that are linear in the reduction's semiring are composed over 1, 2, 4, ... lanes (Kogge and Stone, "A parallel algorithm for the efficient solution
    of a general class of recurrence equations", IEEE Trans. Computers, 1973), or within halves and then over both (scan_lanes.py); lanes that do not act hand on what they get.
    """
    if scan.second is not None:
        assign_second_order(state, node, scan)
        return
    b, width, reduction = state.builder, state.width, node.reduction or "sum"
    slot = state.slots[scan.carry]
    dtype = slot.variable.dtype
    identity = REDUCTIONS[reduction].identity(dtype)
    assert identity is not None, "internal: a scan of argmax or argmin"
    rest = masked(state, replace(node, reduction=reduction), evaluate(state, node.value), dtype)
    neutral = neutral_lanes(state, rest.type, reduction, identity)
    steps = Steps(state, reduction, dtype, is_harmless(scan.factor, dtype), neutral)
    acts = None if state.lanes is None else state.lanes.mask
    halves = acts is None and scan.reset is None and in_halves(b, rest.type)
    totals = state.prepared.get(scan, ()) if acts is None else ()
    if not totals and scan.factor is not None:
        totals = _totals(state, scan.factor, reduction, rest.type, acts, halves)
    factor, total = (totals[0], totals[-1]) if totals else (None, None)
    reset = None if scan.reset is None else resets(state, scan.reset)
    value, cut = rest, reset
    # Lanes up to which one has acted: to what is neutral before the first of them no factor may be added, least of all an infinity.
    seen = acts if reduction != "sum" and factor is not None and not steps.harmless else None
    # Where the first lanes are taken out again, once a factor has been added to them, nobody reads what moves in, and LLVM finds a shuffle of one register.
    slides = b.slides(rest.type) and (reduction == "sum" or steps.harmless)
    for number, sources in enumerate(sources_of(width, halves=halves)):
        made_of, step = totals[number] if totals else None, 1 << number
        earlier = b.slide(neutral, value, width - step) if slides else taken_from(b, value, sources, neutral)
        inside = lanes_with(sources) if seen is None else earlier_bits(b, seen, step)
        value = steps.taken(made_of, earlier, value, cut, inside=inside)
        if seen is not None:
            seen = b.binary("or", seen, inside)
        if cut is not None:
            cut = b.binary("or", cut, earlier_bits(b, cut, step))
    carry = read_place(state, Place(scan.carry, ()))
    last = last_lane(b, value, carry.lanes)
    value = steps.taken(total, b.splat(carry, width), value, cut)
    if cut is None:
        # The last lane by itself, with the same operation: all that the next vector waits for.
        following = steps.taken(None if total is None else last_lane(b, total, carry.lanes), carry, last)
    else:
        following = last_lane(b, value, carry.lanes)
    if factor is not None and reduction != "sum" and not dtype.is_float:
        value, following = settled(steps, factor, rest, reset, b.splat(carry, width), value, following)
    elif factor is not None and scan.factor is not None and not stays_normal(scan.factor, width, reduction):
        if reduction == "sum":
            doubts = beyond_products(state, scan.factor, value)
        else:
            doubts = beyond_sums(
                b, totals[-1], lambda: _composed(b, finite(b, totals[0], identity), reduction, halves)[-1]
            )
        value, following = step_by_step(steps, factor, rest, reset, b.splat(carry, width), (value, following), doubts)
    b.write(f"store {following}, {slot.pointer}, align {dtype.alignment}")
    forget_register(state, scan.carry)
    write_place(state, node.target, value, streaming=node.streaming, aligned=node.aligned)


def scan_numbers(state: State, node: Assign, scan: Scan, width: int) -> tuple[Value, ...]:
    """What a scan needs that follows from its factors alone, which are the same in all lanes and iterations."""
    assert scan.factor is not None, "internal: a scan without factors"
    type_ = type_of(node.value.dtype, width)
    if scan.second is not None:
        return second_order_numbers(state, scan, type_)
    halves = scan.reset is None and in_halves(state.builder, type_)
    return _totals(state, scan.factor, node.reduction or "sum", type_, None, halves)


def _totals(
    state: State, factor: Expr, reduction: str, type_: Type, acts: Value | None, halves: bool
) -> tuple[Value, ...]:
    """The factors of a vector's lanes, and those of as many lanes together as each step has put together, up to all lanes before each one and itself. acts: the lanes that do."""
    b, one = state.builder, constant(type_, 1 if reduction == "sum" else 0)
    total = b.splat(evaluate(state, factor), type_.lanes)
    if acts is not None:
        total = b.select(acts, total, one)
    return _composed(b, total, reduction, halves)


def _composed(b: Builder, factors: Value, reduction: str, halves: bool) -> tuple[Value, ...]:
    """The same of these factors."""
    one = constant(factors.type, 1 if reduction == "sum" else 0)
    found = [factors]
    for sources in sources_of(factors.lanes, halves=halves):
        earlier = taken_from(b, found[-1], sources, one)
        found.append(b.arithmetic("mul" if reduction == "sum" else "add", found[-1], earlier))
    return tuple(found)

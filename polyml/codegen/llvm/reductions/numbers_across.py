"""What loops of minima and maxima leave in several registers and their lanes, put together as if no NaN were among them, where none is.

Each of the steps that put a row's maximum together waits for the one before, and with regard to NaN it is a comparison into a mask and a choice under it: on x86 some seven cycles instead of two. A row that is swept once more
waits for all of them. So the registers are looked at once, beside the steps, and a branch that is foreseen decides whether the steps are made with regard to NaN.

    a = max(a, b); m = max(m, lanes of a)    ->    if ordered(a, b): a = b > a ? b : a; ..    else: as it is
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from polyml.codegen.llvm.ir import BIT, Type, Value
from polyml.codegen.llvm.reductions.combine import read_place
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For, Node, Place
from polyml.expressions import Read

__all__ = ["emit_for_numbers", "emit_numbers", "run_of_extrema"]


def run_of_extrema(state: State, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The first nodes, as many as put registers and their lanes together, up to the last one that puts a minimum or maximum of floats together; none where NaN is no matter or comparisons are dear (AVX2: 0.99 to 1.03 of the time)."""
    if not state.builder.module.instructions.scalef or state.numbers or state.lanes is not None:
        return ()
    run = 0
    for position, node in enumerate(nodes):
        if not (_is_across(node) or _joins_registers(state, node)):
            break
        if _is_across(node) and _extrema(state, node):
            run = position + 1
    return tuple(nodes[:run])


def _is_across(node: Node) -> bool:
    return isinstance(node, Assign) and node.across and isinstance(node.value, Read)


def _joins_registers(state: State, node: Node) -> bool:
    """Whether it is a vector of steps that put registers of as many lanes together."""
    if not isinstance(node, For) or node.kind != "vector" or node.masked:
        return False
    once = node.upper - node.lower
    return once.is_constant and once.constant == node.step and all(_is_step(state, inner) for inner in node.body)


def _is_step(state: State, node: Node) -> bool:
    if not isinstance(node, Assign) or node.reduction is None or node.across or not isinstance(node.value, Read):
        return False
    return all(state.slots[name].variable.scope == "register" for name in (node.target.variable, node.value.tensor))


def _extrema(state: State, node: Node) -> tuple[Place, ...]:
    """The registers that take part in minima and maxima of floats."""
    if isinstance(node, For):
        return tuple(place for inner in node.body for place in _extrema(state, inner))
    if not isinstance(node, Assign) or node.reduction not in ("min", "max") or not isinstance(node.value, Read):
        return ()
    floats = state.slots[node.target.variable].variable.dtype.name in ("f32", "f64")
    return (node.target, Place(node.value.tensor, node.value.subscripts)) if floats else ()


def emit_numbers(state: State, run: Sequence[Node], emit: Callable[[Sequence[Node]], None]) -> None:
    """The nodes, which `emit` writes: without regard to NaN where there is none, else as they are."""
    b = state.builder
    by_type: dict[Type, list[Value]] = {}
    for place in dict.fromkeys(place for node in run for place in _extrema(state, node)):
        value = read_place(state, place)
        by_type.setdefault(value.type, []).append(value)
    flags: list[Value] = []
    for values in by_type.values():
        pairs = zip(values[::2], values[1::2] + values[-1:] * (len(values) % 2), strict=True)
        mask = reduce(lambda x, y: b.binary("and", x, y), (b.compare("ord", one, other) for one, other in pairs))
        flags.append(mask if mask.lanes == 1 else b.intrinsic("vector.reduce.and", mask, result=BIT))
    usual = reduce(lambda x, y: b.binary("and", x, y), flags)
    emit_for_numbers(state, usual, lambda: emit(run))


def emit_for_numbers(
    state: State, usual: Value, emit: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """What `emit` writes, twice: without regard to NaN for where the bit `usual` is set, and as it is, or as `otherwise` writes it."""
    b = state.builder
    numbers, exact, after = b.fresh("numbers"), b.fresh("exact"), b.fresh("after")
    b.branch(b.negate(usual), exact, numbers, rare=True)
    b.start(numbers)
    state.numbers = True
    emit()
    state.numbers = False
    b.jump(after)
    b.start(exact)
    (otherwise or emit)()
    b.jump(after)
    b.start(after)

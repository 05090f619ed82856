"""What holds within an iteration of a loop: its variable and its lanes, which of these act, and the elements until rows of unknown length are aligned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import INDEX, Lines, Value, integer
from polyml.codegen.llvm.masks import lanes_before, leading_lanes
from polyml.codegen.llvm.memory.access import access
from polyml.codegen.llvm.memory.addresses import Level
from polyml.codegen.llvm.memory.parts_in_place import has_parts_in_place
from polyml.codegen.llvm.memory.phases import phases_of, written_phases
from polyml.codegen.llvm.state import Lanes, State
from polyml.codegen.loops import For, Lead, Node
from polyml.codegen.rewrite import walk_nodes

__all__ = ["add_lead", "inside_loop"]


def add_lead(state: State, lead: Lead) -> None:
    """The integer that the lead names: elements until the row's first aligned address."""
    b, slot, level = state.builder, state.slots[lead.array], len(state.nest.levels) - 1
    first = access(state, lead.array, lead.row, evaluate).pointer if lead.row else slot.pointer
    with b.into(state.nest.levels[-1].lines):
        address = b.emit(INDEX, f"ptrtoint {first} to i64")
        ahead = b.binary("and", b.binary("sub", integer(0), address), integer(lead.bytes - 1))
        elements = b.binary("lshr", ahead, integer(slot.variable.dtype.itemsize.bit_length() - 1))
    state.nest.variables[lead.name] = (level, elements)


@contextmanager
def inside_loop(
    state: State, node: For, current: Value, upper: Value, ragged: tuple[Value, Value] | None
) -> Iterator[None]:
    """In an iteration of the loop: its variable is `current`, and its lanes are those that act."""
    b, nest, lanes = state.builder, state.nest, state.lanes
    assert node.variable not in nest.variables, f"internal: two loops around have the variable {node.variable}"
    b.known = {}  # subscripts with this variable mean other elements now
    preamble: Lines = []
    b.lines.append(preamble)
    nest.levels.append(Level(preamble))
    nest.variables[node.variable] = (len(nest.levels) - 1, current)
    nest.grids[node.variable] = (node.lower, node.step)
    around = state.phases, state.written, state.loop_lanes
    state.loops.append(node)
    rows = [lead for lead in state.leads if lead.inside == node.variable and _uses(node.body, lead.name)]
    for lead in rows:
        add_lead(state, lead)
    if node.kind == "vector" and node.width > 1:
        assert lanes is None, "internal: a vector loop inside another"
        mask = lanes_before(state, node, upper) if node.masked else None
        count = None if mask is None else leading_lanes(state, node, current, upper)
        lanes = Lanes(node.variable, node.width, mask, leading=count)
        b.in_place = mask is None and has_parts_in_place(state, node)
        state.phases, state.written = phases_of(node, state.flat), written_phases(node, state.flat)
    elif ragged is not None:
        position = b.splat(current, ragged[0].lanes)
        reached = b.compare("sle", ragged[0], position)
        lanes = state.where(b.binary("and", reached, b.compare("slt", position, ragged[1])))
    if lanes is not state.lanes:
        state.loop_lanes = lanes
    with state.within(lanes):
        yield
        if state.hope is not None:
            state.hope.end_round()
    b.known = {}
    b.in_place = b.in_place and node.kind != "vector"
    state.phases, state.written, state.loop_lanes = around  # behind the lanes another loop may have the variable
    state.loops.pop()
    nest.levels.pop()
    for name in (node.variable, *(lead.name for lead in rows)):
        del nest.variables[name]
    del nest.grids[node.variable]


def _uses(nodes: tuple[Node, ...], name: str) -> bool:
    """Whether the bounds of a loop among these nodes use the integer."""
    return any(
        isinstance(node, For) and name in node.lower.variables() | node.upper.variables() for node in walk_nodes(nodes)
    )

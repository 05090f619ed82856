"""Loops to LLVM IR: walks a Function once and writes text.

    i32 @name(ptr noalias nonnull a0, ..., i64 N, ...)      one per Function: pointers in the order of `arguments`, then the sizes; 0 or NO_MEMORY (frame.py)

A parallel loop's body becomes a function of its own (outline.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import assert_never

from polyml.codegen.llvm.adders import shared
from polyml.codegen.llvm.arithmetic import cast
from polyml.codegen.llvm.conditions import is_of_sizes, version, zero_lead
from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.few_steps import emit_few_steps, is_few_steps, most_trips
from polyml.codegen.llvm.functions.frame import finish
from polyml.codegen.llvm.functions.outline import (
    argument_name,
    emit_apart,
    emit_parallel,
    new_state,
    size_name,
    stands_apart,
)
from polyml.codegen.llvm.functions.pipeline import emit_pipelined, emit_stage, has_stages
from polyml.codegen.llvm.ir import INDEX, Instructions, Lines, Module, Value
from polyml.codegen.llvm.iterations import add_lead, inside_loop
from polyml.codegen.llvm.masks import leading
from polyml.codegen.llvm.memory.access import access, is_apart, prefetch
from polyml.codegen.llvm.memory.column_stores import run_of_columns, store_columns
from polyml.codegen.llvm.memory.neighbours import Parts, emit_shifted, neighbouring_rows
from polyml.codegen.llvm.memory.shuffled import shuffle_block
from polyml.codegen.llvm.memory.storage import add_slot, leave_room, make_room
from polyml.codegen.llvm.memory.transpose import has_many_blocks, transpose_block
from polyml.codegen.llvm.reductions.across import best_of_run, combine_run, run_across, run_of_arguments
from polyml.codegen.llvm.reductions.combine import assign, update_argument
from polyml.codegen.llvm.reductions.extrema import emit_extrema, extrema_of
from polyml.codegen.llvm.reductions.numbers_across import emit_numbers, run_of_extrema
from polyml.codegen.llvm.reductions.numbers_ahead import look_ahead
from polyml.codegen.llvm.reductions.numbers_kept import keep_numbers
from polyml.codegen.llvm.reductions.scan import assign_scanned, with_lanes
from polyml.codegen.llvm.state import Slot, State
from polyml.codegen.llvm.unchanging import Unchanging, choose_divisions, compute_ahead, unchanging
from polyml.codegen.loops import (
    Allocate,
    Assign,
    Block,
    For,
    Function,
    If,
    Node,
    Prefetch,
    Scan,
    UpdateArgument,
    Variable,
)
from polyml.codegen.ranges import outside
from polyml.dtypes import boolean

__all__ = ["emit_function", "emit_module"]

_FEW = 2
"""Iterations for which nothing is carried along."""
_KNOWN_LEVELS = 3
"""Loops with at least so many levels of loops inside hide their counters from LLVM: what they contain sees a number from nowhere (an empty line of assembly).
Its strength reduction else weighs every address against all counters around it, which is most of its time where many kinds of tiles stand in one nest, and
gains nothing: what an outer loop advances by is computed once per round. The loops of a register tile and of its sum are left to it; where no registers are held across loops, the innermost ones."""


def emit_module(
    functions: Iterable[Function],
    instructions: Instructions | None = None,
    *,
    precise: bool = False,
    parallel: bool = True,
) -> str:
    """The functions as the text of one LLVM module, without a target.

    precise: no contraction of products into sums. parallel: False runs parallel loops in place, on the calling thread.
    """
    module = Module(instructions or Instructions())
    for function in functions:
        ahead = keep_numbers(look_ahead(function)) if module.instructions.nan_is_dear else function
        emit_function(module, ahead, precise=precise, parallel=parallel)
    return module.text()


def emit_function(module: Module, function: Function, *, precise: bool = False, parallel: bool = True) -> None:
    """Adds the function, and what it needs, to the module."""
    variables = [(variable, f"%{argument_name(variable.name)}") for variable in function.arguments]
    state = new_state(module, function.name, function.sizes, variables, precise=precise, parallel=parallel)
    state.any_size = bool(function.sizes)
    state.outside = outside(function)
    for lead in function.leads:
        if not lead.inside:
            add_lead(state, lead)
    state.leads = function.leads
    module.calls_blocks = has_many_blocks(function)
    parameters = [_pointer_parameter(v, written=v.name in function.written) for v in function.arguments]
    parameters += [f"i64 %{size_name(name)}" for name in function.sizes]
    _emit_nodes(state, function.body)
    finish(state, f"define i32 @{function.name}({', '.join(parameters)})", status=True)


def _pointer_parameter(variable: Variable, *, written: bool) -> str:
    alignment = max(variable.alignment or 1, variable.dtype.alignment)
    access = "" if written else " readonly"
    return f"ptr noalias nonnull{access} align {alignment} %{argument_name(variable.name)}"


# -- nodes ------------------------------------------------------------------------------------------------------------------------


def _emit_nodes(state: State, nodes: Iterable[Node], after: tuple[Node, ...] = (), *, looked_at: bool = False) -> None:
    """The nodes; those `after` them are emitted next. looked_at: for NaN among the registers that they put together."""
    nodes = tuple(nodes)
    position = 0
    while position < len(nodes):
        together = _emit_run(state, nodes[position:], after, looked_at=looked_at)
        if not together:
            _emit_node(state, nodes, position, after)
        position += together or 1


def _emit_run(state: State, nodes: tuple[Node, ...], after: tuple[Node, ...], *, looked_at: bool) -> int:
    """The first of the nodes that are done in fewer steps together than one by one: how many they were, 0 where there are none."""
    extrema = run_of_extrema(state, nodes) if not looked_at else ()
    if extrema:
        following = (*nodes[len(extrema) :], *after)
        emit_numbers(state, extrema, partial(_emit_nodes, state, after=following, looked_at=True))
        return len(extrema)
    run = run_across(state, nodes)
    if len(run) > 1:
        combine_run(state, run, (*nodes[len(run) :], *after))
        return len(run)
    choices = run_of_arguments(state, nodes)
    if len(choices) > 1:
        best_of_run(state, choices)
        return len(choices)
    columns = run_of_columns(state, nodes)
    if columns is None:
        return 0
    for between in columns.between:
        assign(state, between)
    store_columns(state, columns.stores)
    return columns.count


def _emit_node(state: State, nodes: tuple[Node, ...], position: int, after: tuple[Node, ...]) -> None:
    """The node at this position among its neighbours."""
    node = nodes[position]
    match node:
        case Assign(scan=Scan() as scan):
            assign_scanned(state, node, scan)
        case Assign():
            assign(state, node)
        case UpdateArgument():
            update_argument(state, node)
        case Prefetch():
            where = access(state, node.place.variable, node.place.subscripts, evaluate)
            prefetch(state, where, node.level, write=node.write)
        case For(kind="parallel") if state.parallel and state.lanes is None:
            emit_parallel(state, node, _emit_counted)
        case For(kind="pipelined") if state.parallel and state.lanes is None and has_stages(node.body):
            emit_pipelined(state, node, _emit_counted)
        case For(kind="transpose" | "shuffle"):
            _emit_body(state, node, state.nest.index(node.lower), state.nest.index(node.upper), None)
        case For() if stands_apart(state, node, nodes):
            emit_apart(state, node, _emit_counted)
        case For():
            _emit_for(state, node)
        case If():
            _emit_if(state, node)
        case Allocate():
            _emit_allocate(state, node, (*nodes[position + 1 :], *after))
        case Block():
            _emit_nodes(state, node.body)
        case _:
            assert_never(node)


def _emit_allocate(state: State, node: Allocate, after: tuple[Node, ...]) -> None:
    """Storage, and that which is inside it at once: registers of a tile are dozens, too many for a level of recursion each."""
    hidden: list[tuple[str, Slot | None]] = []
    body: tuple[Node, ...] = (node,)
    while len(body) == 1 and isinstance(body[0], Allocate):
        made, body = with_lanes(body[0]), body[0].body
        hidden.append((made.name, state.slots.get(made.name)))
        add_slot(state, made, make_room(state, made))
        state.holding += made.scope == "register"
    b = state.builder
    siblings, b.depth = b.depth, 0
    _emit_nodes(state, body, after)
    for name, slot in reversed(hidden):
        leave_room(state, state.slots[name])
        if state.slots[name].variable.scope == "register":
            state.holding -= 1
            b.keeps = b.keeps or b.depth > 0
        if slot is None:
            del state.slots[name]
        else:
            state.slots[name] = slot
    b.depth = max(siblings, b.depth)


def _emit_if(state: State, node: If) -> None:
    b = state.builder
    chooses = len(state.nest.levels) == 1 and state.lanes is None and is_of_sizes(state, node.condition)
    with b.into(state.nest.levels[0].lines) if chooses else nullcontext():
        condition = cast(b, evaluate(state, node.condition), node.condition.dtype, boolean)
    if condition.lanes > 1:
        with state.within(state.where(condition)):
            _emit_nodes(state, node.then)
        if node.otherwise:
            with state.within(state.where(b.negate(condition))):
                _emit_nodes(state, node.otherwise)
        return
    then, otherwise, after = b.fresh("then"), b.fresh("else"), b.fresh("endif")
    b.branch(condition, then, otherwise if node.otherwise else after)
    b.start(then)
    with zero_lead(state, node.condition), version(state, condition if chooses else None):
        _emit_nodes(state, node.then)
    b.jump(after)
    if node.otherwise:
        b.start(otherwise)
        with b.into(state.nest.levels[0].lines) if chooses else nullcontext():
            opposite = b.negate(condition) if chooses else None
        with version(state, opposite):
            _emit_nodes(state, node.otherwise)
        b.jump(after)
    b.start(after)


def _emit_for(state: State, node: For) -> None:
    nest, lanes = state.nest, state.lanes
    if lanes is None or lanes.variable not in node.lower.variables() | node.upper.variables():
        lower, upper = nest.index(node.lower), nest.index(node.upper)
        extrema = extrema_of(state, node)
        if extrema is None:
            _emit_counted(state, node, lower, upper, None)
        else:
            emit_extrema(state, extrema, lambda loop: _emit_counted(state, loop, lower, upper, None))
        return
    # Bounds differ between lanes: from the least to the greatest, each lane masked to its own part.
    b = state.builder
    lower = b.splat(nest.lanes_index(node.lower, lanes.variable, lanes.width), lanes.width)
    upper = b.splat(nest.lanes_index(node.upper, lanes.variable, lanes.width), lanes.width)
    assert node.step == 1 or node.lower.stride(lanes.variable) == 0, "internal: lanes walk different grids"
    first = b.intrinsic("vector.reduce.smin", lower, result=INDEX)
    last = b.intrinsic("vector.reduce.smax", upper, result=INDEX)
    _emit_counted(state, node, first, last, (lower, upper))


def _unchanging(state: State, node: For) -> Unchanging:
    """What the loop computes in each iteration alike, elements that lanes gather among it, and those that steps of registers take: as operands in memory they come anew in every step, from two lines each where they do not lie at one."""
    if state.lanes is None:
        return unchanging(node)
    steps = _is_of_registers(state, node)
    return unchanging(node, lambda read: is_apart(state, read.tensor, read.subscripts, evaluate, or_beside=steps))


def _is_of_registers(state: State, node: For) -> bool:
    """Whether all that the loop does is to give registers values that follow from the ones before."""
    return all(
        isinstance(step, Assign)
        and step.reduction is None
        and state.slots[step.target.variable].variable.scope == "register"
        for step in node.body
    )


def _emit_counted(state: State, node: For, lower: Value, upper: Value, ragged: tuple[Value, Value] | None) -> None:
    """The loop in the cheapest form: not at all, once, a few times written out, with vectors that are shifted on, or as a loop."""
    trips = _trips(state, node, lower, upper, ragged)
    if trips == 0:
        return
    outside = dict(state.held), dict(state.reciprocals), dict(state.prepared), state.multiplied
    state.multiplied = shared(state, node)
    if trips == 1:
        choose_divisions(state, node)
        _emit_body(state, node, lower, upper, ragged)
    elif rows := neighbouring_rows(state, node) if trips is None or trips > _FEW else []:
        parts = Parts(
            inside=lambda value: inside_loop(state, node, value, upper, None),
            body=lambda: _emit_nodes(state, node.body),
            evaluate=evaluate,
            ahead=lambda: compute_ahead(state, node, unchanging(node)),
        )
        emit_shifted(state, node, (lower, upper), rows, parts)
        state.builder.depth = max(state.builder.depth, 1)
    elif trips is not None and ragged is None and is_few_steps(state, node, trips):
        compute_ahead(state, node, _unchanging(state, node))
        emit_few_steps(state, node, (lower, upper), trips, lambda value: _emit_body(state, node, value, upper, None))
    elif trips is None and ragged is None and is_few_steps(state, node, most := most_trips(node)):
        b = state.builder
        entered, after = b.fresh("entered"), b.fresh("after")
        b.branch(b.compare("slt", lower, upper), entered, after)
        b.start(entered)
        compute_ahead(state, node, _unchanging(state, node))
        emit_few_steps(state, node, (lower, upper), most, lambda value: _emit_body(state, node, value, upper, None))
        b.jump(after)
        b.start(after)
    else:
        _emit_loop(state, node, lower, upper, ragged, runs=trips is not None)
    # What was computed ahead of the loop is no more.
    state.held, state.reciprocals, state.prepared, state.multiplied = outside


def _trips(state: State, node: For, lower: Value, upper: Value, ragged: tuple[Value, Value] | None) -> int | None:
    """How many iterations the loop has, where that is known; one that runs once has no loop, its variable is a number.

    From an unknown place on that is so in kernels of any size, whose addresses are many: LLVM keeps those around such a loop in memory. Where sizes are known it removes the loop itself, and of full
    register tiles fewer values leave the registers than without it (AVX-512, depthwise 3x3 with stride 2).
    """
    if lower.is_constant and upper.is_constant:
        return max(0, -((int(lower.text) - int(upper.text)) // node.step))
    span = node.upper - node.lower
    if state.any_size and span.is_constant and 0 < span.constant <= node.step and ragged is None:
        return 1
    return 1 if node.masked and ragged is None and leading(node) is not None else None


def _emit_loop(
    state: State, node: For, lower: Value, upper: Value, ragged: tuple[Value, Value] | None, *, runs: bool
) -> None:
    """The loop as a test, where it is not sure to run, and a do-while."""
    b = state.builder
    loop, after = b.fresh("loop"), b.fresh("after")
    same = _unchanging(state, node) if ragged is None else None  # a lane without iterations computes nothing
    if not runs:
        entered = b.fresh("entered") if same else loop
        b.branch(b.compare("slt", lower, upper), entered, after)
        if same:
            b.start(entered)
    if same:
        compute_ahead(state, node, same)
    before = b.block
    if runs or same:
        b.jump(loop)
    b.start(loop)
    current, following = Value(INDEX, f"%{b.fresh(node.variable)}"), b.fresh("%next")
    head: Lines = []
    b.lines.append(head)
    siblings, b.depth = b.depth, 0
    held, b.keeps = b.keeps, False
    _emit_body(state, node, current, upper, ragged)
    known = _KNOWN_LEVELS if b.keeps or state.holding else 1
    inner, b.depth = b.depth, max(siblings, b.depth + 1)
    b.keeps = b.keeps or held
    counter = current.text if inner < known else b.fresh("%counter")
    b.write(f"{following} = add nsw i64 {counter}, {node.step}")
    head.append(f"  {counter} = phi i64 [{lower.text}, %{before}], [{following}, %{b.block}]")
    if counter != current.text:
        head.append(f'  {current.text} = call i64 asm "", "=r,0"(i64 {counter})')
    b.branch(b.compare("slt", Value(INDEX, following), upper), loop, after)
    b.start(after)


def _emit_body(state: State, node: For, current: Value, upper: Value, ragged: tuple[Value, Value] | None) -> None:
    if node.kind == "stage" and state.pipeline is not None:
        emit_stage(state, node, current, upper, _emit_counted)
        return
    with inside_loop(state, node, current, upper, ragged):
        if node.kind == "transpose":
            transpose_block(state, node, upper, evaluate)
        elif node.kind == "shuffle":
            shuffle_block(state, node, evaluate)
        else:
            _emit_nodes(state, node.body)

"""Loops whose bodies are functions of their own: parallel ones, which the runtime runs in parts, and those that would take registers from their neighbours.

    void polyml_parallel(ptr body, ptr context, i64 lower, i64 upper, i64 step)
    body: void (ptr context, i64 lower, i64 upper)           runs `for (v = lower; v < upper; v += step)`; lower is on the loop's grid

A nest that computes what it copies (a prologue) needs numbers in vectors, tiles at a slanted edge need masks. LLVM loads these ahead of all loops around, where they live through the whole
tiles beside, which have no register to spare; its allocator then spills accumulators in the innermost loop. So whole tiles are a function, which has all registers for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from polyml.codegen.llvm.functions.captures import captured
from polyml.codegen.llvm.functions.frame import failure_of, finish, leave_if_failed
from polyml.codegen.llvm.ir import INDEX, POINTER, Builder, Lines, Module, Type, Value, integer
from polyml.codegen.llvm.memory.addresses import Nest
from polyml.codegen.llvm.memory.storage import add_slot
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, If, Node, Variable
from polyml.codegen.passes.parallel_work import LIGHT, work_of_loop
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Const, Read
from polyml.sets.affine import affine

__all__ = [
    "PARALLEL",
    "Emit",
    "argument_name",
    "emit_apart",
    "emit_parallel",
    "is_light",
    "new_state",
    "pack",
    "range_function",
    "size_name",
    "stands_apart",
    "unpacked",
]

PARALLEL = "polyml_parallel"
"""The runtime's entry for parallel loops."""

FRACTION = 1024
"""Units of a cycle in which work is counted, in integers."""

MOST, MOST_TRIPS = 1 << 40, 1 << 20
"""Of work, in these units, and of one factor of it: more is as good as this, and no product overflows."""

TILE = 12
"""Registers of a tile that has none to spare."""

Emit = Callable[[State, For, Value, Value, tuple[Value, Value] | None], None]
"""Writes a loop from one value to another."""


def size_name(name: str) -> str:
    return f"size.{name}"


def argument_name(name: str) -> str:
    """The dot keeps a program's names (v1, next2) apart from those of values."""
    return f"arg.{name}"


def new_state(
    module: Module,
    name: str,
    sizes: Iterable[str],
    variables: list[tuple[Variable, str]],
    *,
    precise: bool,
    parallel: bool,
) -> State:
    """The state of a function's emission before its first line."""
    top: Lines = []
    builder = Builder(module, [top], flags="" if precise else "contract")
    nest = Nest(builder, top)
    for size in sizes:
        nest.variables[size] = (0, Value(INDEX, f"%{size_name(size)}"))
    state = State(builder, nest, name, precise, parallel, {})
    for variable, text in variables:
        add_slot(state, variable, Value(POINTER, text))
    return state


# -- loops apart --------------------------------------------------------------------------------------------------------------------


def stands_apart(state: State, node: For, neighbours: Sequence[Node]) -> bool:
    """Whether a loop holds a register tile, beside others that need numbers or masks in vectors."""
    if state.lanes is not None or node.kind != "sequential":
        return False
    return any(_needs_vectors(state, other) for other in neighbours if other is not node) and _holds_tile(state, node)


def _holds_tile(state: State, node: For) -> bool:
    """Whether the loop has a tile, no conditions, no memory, nothing that runs in parallel, and no use for registers of the loops around."""
    most = 0
    for inner in walk_nodes(node.body):
        match inner:
            case For(kind="vector", masked=False):
                held = (n for n in walk_nodes(inner.body) if isinstance(n, Allocate) and n.variable.lanes > 1)
                most = max(most, sum(n.variable.scope == "register" for n in held))
            case For(kind="parallel" | "pipelined" | "stage") | For(masked=True) | If():
                return False
            case Allocate(variable=variable) if variable.scope != "register":
                return False
            case _:
                pass
    return most >= TILE and all(state.slots[name].variable.scope != "register" for name in captured(state, node)[0])


def _needs_vectors(state: State, node: Node) -> bool:
    """Whether the node has conditions or masks for its lanes, or computes what it copies into scratch memory."""
    for inner in walk_nodes([node]):
        match inner:
            case For(masked=True) | If():
                return True
            case Assign(value=Read()) | Assign(value=Const()):
                pass
            case Assign(reduction=None):
                slot = state.slots.get(inner.target.variable)
                if slot is not None and slot.variable.scope == "local":
                    return True
            case _:
                pass
    return False


def emit_apart(state: State, node: For, emit: Emit) -> None:
    """The loop as a function, and a call of it."""
    arrays, scalars = captured(state, node)
    name, _, inner = range_function(state, node, arrays, scalars, emit)
    assert not inner.heap, "internal: a loop apart that needs memory"
    values = [state.slots[array].pointer for array in arrays] + [state.nest.variables[s][1] for s in scalars]
    bounds = (state.nest.index(node.lower), state.nest.index(node.upper))
    state.builder.write(f"call void @{name}({', '.join(map(str, [*values, *bounds]))})")
    state.builder.known = {}  # it has written elements


# -- parallel loops ---------------------------------------------------------------------------------------------------------------


def emit_parallel(state: State, node: For, emit: Emit) -> None:
    """Outlines the body, packs what it uses into a context on the stack, and calls it: directly when the loop runs once or has little to do, else by the runtime."""
    b = state.builder
    arrays, scalars = captured(state, node)
    values = [state.slots[name].pointer for name in arrays] + [state.nest.variables[name][1] for name in scalars]
    body, may_fail = _outline(state, node, arrays, scalars, emit)
    if may_fail:
        values.append(failure_of(state))
    context = pack(state, values)
    lower, upper = state.nest.index(node.lower), state.nest.index(node.upper)
    once, several, after = b.fresh("once"), b.fresh("several"), b.fresh("joined")
    few = b.compare("sle", b.binary("sub", upper, lower), integer(node.step))
    light = is_light(state, node)
    b.branch(few if light is None else b.binary("or", few, light), once, several)
    b.start(once)
    b.write(f"call void @{body}({context}, {lower}, {upper})")
    b.jump(after)
    b.start(several)
    b.module.declare(PARALLEL, "void", ["ptr", "ptr", "i64", "i64", "i64"])
    b.write(f"call void @{PARALLEL}(ptr @{body}, {context}, {lower}, {upper}, i64 {node.step})")
    b.jump(after)
    b.start(after)
    if may_fail:
        leave_if_failed(state)


def is_light(state: State, node: For) -> Value | None:
    """Whether the loop has too little to do for threads; None where that does not depend on sizes and the loops around."""
    works = work_of_loop(node)
    if not any(work.trips for work in works):
        return None
    b, total = state.builder, integer(0)
    for work in works:
        cycles = integer(max(1, min(MOST, round(FRACTION * work.cycles))))
        for trips in work.trips:
            # Where a row begins in its cache line is known in its loop only; it is less than a vector.
            here = trips.substitute(dict.fromkeys(trips.variables() - state.nest.variables.keys(), 0))
            count = b.intrinsic("smin", b.intrinsic("smax", state.nest.index(here), integer(0)), integer(MOST_TRIPS))
            cycles = b.intrinsic("smin", b.binary("mul", cycles, count), integer(MOST))
        total = b.binary("add", total, cycles)
    return b.compare("slt", total, integer(FRACTION * LIGHT))


def pack(state: State, values: Sequence[Value]) -> Value:
    """A context of these values: 8 bytes each, on the stack."""
    b = state.builder
    with b.into(state.entry):
        context = b.emit(POINTER, f"alloca [{max(len(values), 1)} x i64], align 8")
    for position, value in enumerate(values):
        slot = b.emit(POINTER, f"getelementptr i64, {context}, i64 {position}")
        b.write(f"store {value}, {slot}, align 8")
    return context


def unpacked(types: Sequence[Type]) -> tuple[list[str], list[str]]:
    """The lines that load the values of a `%context`, and the values."""
    lines, values = [], []
    for position, type_ in enumerate(types):
        lines.append(f"  %s{position} = getelementptr i64, ptr %context, i64 {position}")
        lines.append(f"  %a{position} = load {type_}, ptr %s{position}, align 8")
        values.append(f"{type_} %a{position}")
    return lines, values


def _outline(state: State, node: For, arrays: list[str], scalars: list[str], emit: Emit) -> tuple[str, bool]:
    """Two functions: the body with restricted pointers as parameters, and the runtime's view of it, which unpacks the context. Whether it may find no memory: then the last
    pointer of the context is where that is noted."""
    module = state.builder.module
    function, types, inner = range_function(state, node, arrays, scalars, emit)
    name = function.removesuffix(".range")
    unpack, arguments = unpacked(types)
    call = f"  call void @{function}({', '.join([*arguments, 'i64 %lower', 'i64 %upper'])})"
    header = f"define internal void @{name}(ptr %context, i64 %lower, i64 %upper) nounwind {{"
    module.definitions[name] = "\n".join([header, *unpack, call, "  ret void", "}"])
    return name, bool(inner.heap)


def range_function(
    state: State, node: For, arrays: list[str], scalars: list[str], emit: Emit, *, pipelined: bool = False
) -> tuple[str, list[Type], State]:
    """A function that runs the loop between two bounds: its name, the types of what it takes before them, and how its emission ended.

    pipelined: it takes the pointer of a pipeline, and where to note that there is no memory, in any case.
    """
    state.bodies += 1
    name = f"{state.name}.body{state.bodies}.range"
    inner = new_state(state.builder.module, name, (), [], precise=state.precise, parallel=False)
    inner.any_size, inner.outside, inner.loops = state.any_size, state.outside, list(state.loops)
    inner.leads = state.leads
    for scalar in scalars:
        inner.nest.variables[scalar] = (0, Value(INDEX, f"%{size_name(scalar)}"))
        inner.nest.grids[scalar] = (affine(0), state.nest.multiple_of(affine(scalar)))
    for array in arrays:
        add_slot(inner, state.slots[array].variable, Value(POINTER, f"%{argument_name(array)}"))
    if pipelined:
        inner.pipeline, inner.failure = (Value(POINTER, "%pipeline"), node.variable), Value(POINTER, "%failure")
    lower, upper = Value(INDEX, "%range.lower"), Value(INDEX, "%range.upper")
    emit(inner, node, lower, upper, None)
    parameters = [f"ptr noalias nonnull %{argument_name(array)}" for array in arrays] + [
        f"i64 %{size_name(scalar)}" for scalar in scalars
    ]
    types = [POINTER] * len(arrays) + [INDEX] * len(scalars)
    if pipelined:
        parameters.append("ptr %pipeline")
        types.append(POINTER)
    if inner.heap or pipelined:
        inner.failure = Value(POINTER, "%failure")
        parameters.append(str(inner.failure))
        types.append(POINTER)
    header = f"define internal void @{name}({', '.join([*parameters, str(lower), str(upper)])}) noinline"
    finish(inner, header, status=False)
    return name, types, inner

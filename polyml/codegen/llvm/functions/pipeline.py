"""Pipelined loops: threads take iterations in order, and each waits, stage by stage, for the iteration before its own.

    void polyml_pipeline(ptr pipeline, i64 lower, i64 upper, i64 step)     makes one, of BYTES
    i64 polyml_row(ptr pipeline)                       the next iteration that nobody has; `upper` or more when there is none
    void polyml_stage(ptr pipeline, i64 row, i64 v)    all of this row before v is done; returns when the row before has gone beyond v
    void polyml_row_done(ptr pipeline, i64 row)

What threads run is `for (row = next; row < upper; row = next) stages(row)`, posted once for each row, so that whoever comes takes part; the first ones take all.
Each iteration of a stage is a function: what it reads is loaded after the wait. So no two threads wait for each other at the end of a front of tiles, and a thread that is held up holds up the one behind it
when that has caught up only.

Source: Cytron, "Doacross: beyond vectorization for multiprocessors" (ICPP 1986).
"""

from __future__ import annotations

from collections.abc import Iterable

from polyml.codegen.llvm.functions.captures import captured
from polyml.codegen.llvm.functions.frame import failure_of, leave_if_failed
from polyml.codegen.llvm.functions.outline import PARALLEL, Emit, is_light, pack, range_function, unpacked
from polyml.codegen.llvm.ir import INDEX, POINTER, Value, integer
from polyml.codegen.llvm.ring import BYTES
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Block, For, If, Node

__all__ = ["emit_pipelined", "emit_stage", "has_stages"]


def has_stages(nodes: Iterable[Node]) -> bool:
    """Whether nothing runs outside of stages."""
    for node in nodes:
        match node:
            case For(kind="stage"):
                pass
            case If() if has_stages((*node.then, *node.otherwise)):
                pass
            case Block() if has_stages(node.body):
                pass
            case Allocate() if node.variable.scope == "local" and has_stages(node.body):
                pass
            case _:
                return False
    return True


def emit_pipelined(state: State, node: For, emit: Emit) -> None:
    """A function that runs one iteration, one that does so as long as there are some, and a parallel loop of its calls."""
    b = state.builder
    arrays, scalars = captured(state, node)
    function, types, _ = range_function(state, node, arrays, scalars, emit, pipelined=True)
    name = function.removesuffix(".range")
    unpack, arguments = unpacked(types)
    pipeline = f"%a{len(types) - 2}"
    call = ", ".join([*arguments, "i64 %row", "i64 %end"])
    b.module.definitions[name] = "\n".join(
        [
            f"define internal void @{name}(ptr %context, i64 %lower, i64 %upper) nounwind {{",
            *unpack,
            f"  %last.p = getelementptr i64, ptr {pipeline}, i64 9",
            "  %last = load i64, ptr %last.p, align 8",
            "  br label %next",
            "next:",
            f"  %row = call i64 @polyml_row(ptr {pipeline})",
            "  %some = icmp slt i64 %row, %last",
            "  br i1 %some, label %run, label %done",
            "run:",
            "  %end = add i64 %row, 1",
            f"  call void @{function}({call})",
            f"  call void @polyml_row_done(ptr {pipeline}, i64 %row)",
            "  br label %next",
            "done:",
            "  ret void",
            "}",
        ]
    )
    b.module.declare("polyml_row", "i64", ["ptr"])
    b.module.declare("polyml_row_done", "void", ["ptr", "i64"])
    b.module.declare("polyml_pipeline", "void", ["ptr", "i64", "i64", "i64"])
    b.module.declare(PARALLEL, "void", ["ptr", "ptr", "i64", "i64", "i64"])
    with b.into(state.entry):
        made = b.emit(POINTER, f"alloca [{BYTES} x i8], align 64")
    lower, upper = state.nest.index(node.lower), state.nest.index(node.upper)
    b.write(f"call void @polyml_pipeline({made}, {lower}, {upper}, i64 {node.step})")
    values = [state.slots[array].pointer for array in arrays] + [state.nest.variables[s][1] for s in scalars]
    context = pack(state, [*values, made, failure_of(state)])
    shared = f"call void @{PARALLEL}(ptr @{name}, {context}, {lower}, {upper}, i64 {node.step})"
    light = is_light(state, node)
    if light is None:
        b.write(shared)
    else:
        alone, several, after = b.fresh("alone"), b.fresh("several"), b.fresh("joined")
        b.branch(light, alone, several)
        b.start(alone)
        b.write(f"call void @{name}({context}, {lower}, {upper})")
        b.jump(after)
        b.start(several)
        b.write(shared)
        b.jump(after)
        b.start(after)
    leave_if_failed(state)


def emit_stage(state: State, node: For, current: Value, upper: Value, emit: Emit) -> None:
    """One iteration: the wait, and a call of what it does."""
    assert state.pipeline is not None, "internal: a stage of no pipeline"
    b = state.builder
    pipeline, variable = state.pipeline
    arrays, scalars = captured(state, node)
    function, _, inner = range_function(state, node, arrays, scalars, emit)
    values = [state.slots[array].pointer for array in arrays] + [state.nest.variables[s][1] for s in scalars]
    if inner.heap:
        values.append(failure_of(state))
    b.module.declare("polyml_stage", "void", ["ptr", "i64", "i64"])
    b.write(f"call void @polyml_stage({pipeline}, {state.nest.variables[variable][1]}, {current})")
    end = b.intrinsic("smin", b.binary("add", current, integer(node.step)), upper, result=INDEX)
    b.write(f"call void @{function}({', '.join(map(str, [*values, current, end]))})")

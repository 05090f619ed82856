"""A whole program as C: its regions as static functions, and one function that runs the Plan.

int name(int64_t sizes..., inputs..., results...)        pointers; 0, or the number of the check that failed, or -1 without memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from polyml.codegen.c.emit import assemble, function_text
from polyml.codegen.c.helpers import c_type
from polyml.codegen.c.names import RESERVED, words_of
from polyml.codegen.loops import Function
from polyml.graph.plan import Allocate, Buffer, CheckFlag, Free, Launch, Plan
from polyml.new_names import underscored
from polyml.sets.affine import Affine, affine

__all__ = ["NO_MEMORY", "c_name", "program_text"]

NO_MEMORY = -1


def program_text(name: str, plan: Plan, functions: Sequence[Function], sizes: Sequence[str]) -> str:
    """The program as one C file.

    Args:
        functions: of `plain_loops`, for region 0, 1, ...; an argument has the name of the array in Launch.arguments.
        sizes: the symbolic sizes, in the order of the parameters.
    """
    definitions = [function_text(function) for function in functions]
    return assemble([*definitions, _host(c_name(name), plan, functions, sizes)])


def c_name(program: str) -> str:
    """Of the program's function."""
    return f"{program}_program" if program in RESERVED else program


def _host(name: str, plan: Plan, functions: Sequence[Function], sizes: Sequence[str]) -> str:
    taken = {name, *(f.name for f in functions)}
    integers: dict[str, Affine | int] = {}
    for size in sizes:
        others = {*sizes, *map(str, integers.values())} - {size}
        integers[size] = affine(underscored(size, taken, RESERVED, others))
    names = _buffer_names(plan, {*taken, *(str(integer) for integer in integers.values())})
    arguments = list(dict.fromkeys((*plan.inputs, *plan.outputs)))
    written = {
        argument.buffer
        for step in plan.steps
        if isinstance(step, Launch)
        for argument in step.arguments
        if argument.array in functions[step.region].written
    }
    shared = _with_empty_arrays(plan, functions)
    parameters = [f"int64_t {integers[size]}" for size in sizes]
    for buffer in arguments:
        constant = "" if buffer in written else "const "
        parameters.append(f"{constant}{c_type(plan.buffers[buffer].dtype)} *{names[buffer]}")
    temporaries = [step.buffer for step in plan.steps if isinstance(step, Allocate)]
    body = [f"    void *{names[buffer]} = NULL;" for buffer in dict.fromkeys(temporaries)]
    leaves = any(isinstance(step, Allocate | CheckFlag) for step in plan.steps)
    if leaves:
        body.append("    int status = 0;")
    checks = 0
    for step in plan.steps:
        match step:
            case Allocate():
                room = _bytes(plan.buffers[step.buffer], integers) if step.buffer not in shared else f"{_WIDEST}"
                body.append(f"    {names[step.buffer]} = malloc({room});")
                body += _leave_if(f"!{names[step.buffer]}", NO_MEMORY)
            case Launch():
                condition = "" if step.only_if is None else f"if (*(const bool *){names[step.only_if]}) "
                body.append(f"    {condition}{_call(step, functions[step.region], names, integers)};")
            case CheckFlag():
                checks += 1
                body += _leave_if(f"*(const bool *){names[step.buffer]}", checks)
            case Free():
                body += [f"    free({names[step.buffer]});", f"    {names[step.buffer]} = NULL;"]
            case _:
                assert_never(step)
    if leaves:
        body += ["leave:", *(f"    free({names[buffer]});" for buffer in dict.fromkeys(temporaries))]
    prototype = f"int {name}({', '.join(parameters) or 'void'})"
    used = words_of(" ".join(body))
    body += [f"    (void){integers[size]};" for size in sizes if str(integers[size]) not in used]
    body += [f"    (void){names[buffer]};" for buffer in arguments if names[buffer] not in used]
    return "\n".join([prototype, "{", *body, f"    return {'status' if leaves else '0'};", "}"])


_WIDEST = 16
"""Bytes of the widest element."""


def _with_empty_arrays(plan: Plan, functions: Sequence[Function]) -> set[str]:
    """Buffers of one element that arrays without elements are in, too: C has no such arrays, and compilers take them for one element of their own type."""
    found = set()
    for step in plan.steps:
        if isinstance(step, Launch):
            shapes = {variable.name: variable.shape for variable in functions[step.region].arguments}
            empty = [a.buffer for a in step.arguments if Affine() in shapes.get(a.array, ())]
            found |= {b for b in empty if all(extent == Affine((), 1) for extent in plan.buffers[b].shape)}
    return found


def _buffer_names(plan: Plan, taken: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for buffer in plan.buffers:
        name = underscored(buffer, taken, RESERVED)
        taken = taken | {name}
        names[buffer] = name
    return names


def _bytes(buffer: Buffer, integers: Mapping[str, Affine | int]) -> str:
    """An array of no elements has those of its other dimensions (`extent` in emit.py): compilers see the room that functions say they touch."""
    factors = [f"sizeof({c_type(buffer.dtype)})"]
    for extent in (extent.substitute(integers) for extent in buffer.shape):
        if not extent.is_constant or extent.constant > 1:
            factors.append(f"(size_t){extent}" if extent.is_constant or extent.name else f"(size_t)({extent})")
    return " * ".join(factors)


def _leave_if(condition: str, status: int) -> list[str]:
    return [f"    if ({condition}) {{", f"        status = {status};", "        goto leave;", "    }"]


def _size(name: str, function: Function, integers: Mapping[str, Affine | int]) -> str:
    factors = [f.substitute(integers) for f in function.products.get(name, (affine(name),))]
    return " * ".join(str(f) if f.name or f.is_constant else f"({f})" for f in factors)


def _call(step: Launch, function: Function, names: Mapping[str, str], integers: Mapping[str, Affine | int]) -> str:
    """`void *` fits all; a `const void *` would not: before C23 an array of const elements is no const array."""
    place = {argument.array: argument for argument in step.arguments}
    arguments = [_size(size, function, integers) for size in function.sizes]
    for variable in function.arguments:
        argument = place[variable.name]
        start = names[argument.buffer]
        if argument.offset:
            start = f"((const {c_type(variable.dtype)} *){start} + {argument.offset})"
        arguments.append(f"(void *){start}")
    return f"{function.name}({', '.join(arguments)})"

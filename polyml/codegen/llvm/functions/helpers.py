"""Functions that a module's own ones call: recipes of math, blocks of rows, masked accesses of small elements. Each is written when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyml.codegen.llvm.ir import ENTRY, Builder, Lines, Module, Type, Value, flat

__all__ = ["define"]

Body = Callable[[Builder, Mapping[str, Value]], str]
"""Writes a function's instructions, given its parameters, and gives the last one."""


def define(
    module: Module, name: str, result: Type | str, parameters: Mapping[str, Type], attributes: str, body: Body
) -> None:
    """Defines an internal function of the module, unless it has one of that name."""
    if name in module.definitions:
        return
    module.definitions[name] = ""  # reserves the name: such functions call each other
    lines: Lines = []
    given = {parameter: Value(type_, f"%{parameter}") for parameter, type_ in parameters.items()}
    last = body(Builder(module, lines), given)
    header = f"define internal {result} @{name}({', '.join(map(str, given.values()))}) {attributes} nounwind"
    text = "\n".join([f"{ENTRY}:", *flat(lines), f"  {last}"])
    module.definitions[name] = f'{header} "prefer-vector-width"="512" {{\n{text}\n}}'

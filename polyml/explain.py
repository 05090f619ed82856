"""`python -m polyml explain FILE:FUNCTION`: a user's own program at every stage of the pipeline."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from polyml.api import Einsum, einsum
from polyml.debug import compilation
from polyml.dtypes import from_numpy
from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.syntax import Program, SizeRef
from polyml.errors import ArgumentError, PolymlError
from polyml.lowered import View
from polyml.sets.affine import affine

__all__ = ["explain_text", "load_program", "sample_arguments"]

LONGEST = 100
"""Lines of a stage before it is cut, unless it was asked for."""
DEFAULT_SIZES = (64, 48, 32, 40, 24, 16)


def explain_text(place: str, shapes: Sequence[str], views: Sequence[str]) -> str:
    """The stages as text.

    Args:
        place: FILE:FUNCTION. shapes: "N=64" each. views: of polyml.lowered.View; none: all but the assembly, each up to `LONGEST` lines.

    Raises:
        PolymlError: no such file, function, size or view, or what the program itself is refused for.
    """
    known: tuple[View, ...] = get_args(View)
    if wrong := [view for view in views if view not in known]:
        raise PolymlError(f'there is no view "{wrong[0]}"', hint=f"views: {', '.join(known)}")
    program = load_program(place)
    arguments = sample_arguments(program.program, _numbers(shapes))
    with compilation(program.program.name) as record:
        lowered = program.lower(*arguments)
        if not lowered.stages.options.machine.is_cuda:
            lowered.compile()
    called = ", ".join(f"{p.name}: {_kind(a)}" for p, a in zip(program.program.parameters, arguments, strict=True))
    parts = [f"{program.program.name}({called})", lowered.explain(), f"-- time --\n{record}"]
    shown = [v for v in known if v in views] if views else [v for v in lowered.views if v != "asm"]
    for view in shown:
        parts.append(f"-- {view} --\n{_cut(lowered.text(view), view, whole=bool(views))}")
    return "\n\n".join(parts)


def load_program(place: str) -> Einsum:
    """The einsum program FILE:FUNCTION; an undecorated function is taken as if it were decorated.

    Raises:
        PolymlError: there is none.
    """
    file, separator, name = place.rpartition(":")
    if not separator or not Path(file).is_file():
        raise PolymlError(f"{place} is not FILE:FUNCTION with a Python file", hint="for example programs.py:softmax")
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)  # the file may import its neighbours
    try:
        names = runpy.run_path(file, run_name="__polyml_explain__")
    finally:
        sys.path.remove(folder)
    found = names.get(name)
    if isinstance(found, Einsum):
        return found
    if not callable(found):
        programs = [key for key, value in names.items() if isinstance(value, Einsum)]
        raise PolymlError(
            f"{file} has no function {name}", hint=f"einsum programs in it: {', '.join(programs) or 'none'}"
        )
    made: Einsum = einsum(found)
    return made


def sample_arguments(program: Program, numbers: Mapping[str, int]) -> list[object]:
    """Arguments of fitting shapes: ones, and small numbers for the sizes that `numbers` leaves open.

    Raises:
        ArgumentError: `numbers` names no size of the program, or a shape cannot be worked out.
    """
    names = [p.name for p in program.parameters if p.is_size]
    for parameter in program.parameters:
        names += [node.name for entry in parameter.shape or () for node in nodes(entry) if isinstance(node, SizeRef)]
    order = list(dict.fromkeys(names))
    if unknown := sorted(set(numbers) - set(order)):
        raise ArgumentError(f"{program.name} has no size {unknown[0]}", hint=f"its sizes: {', '.join(order) or 'none'}")
    sizes = {name: DEFAULT_SIZES[k % len(DEFAULT_SIZES)] for k, name in enumerate(order)} | dict(numbers)
    known = Names({name: affine(size) for name, size in sizes.items()}, {}, {})
    arguments: list[object] = []
    for parameter in program.parameters:
        if parameter.dtype is None:
            arguments.append(sizes[parameter.name])
        elif parameter.shape is None:
            arguments.append(parameter.dtype.numpy.type(1).item())
        else:
            extents = [to_affine(entry, known) for entry in parameter.shape]
            if not all(extent is not None and extent.is_constant for extent in extents):
                raise ArgumentError(
                    f"the shape of {parameter.name} does not follow from the sizes", span=parameter.span
                )
            arguments.append(
                np.ones([extent.constant for extent in extents if extent is not None], parameter.dtype.numpy)
            )
    return arguments


def _numbers(shapes: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in shapes:
        name, separator, number = item.partition("=")
        if not separator or not number.isdigit():
            raise PolymlError(
                f"--shapes takes SIZE=NUMBER, and was given {item}", hint="for example --shapes N=128 K=64"
            )
        found[name] = int(number)
    return found


def _kind(argument: object) -> str:
    return f"{from_numpy(argument.dtype)}{list(argument.shape)}" if isinstance(argument, np.ndarray) else str(argument)


def _cut(text: str, view: str, *, whole: bool) -> str:
    lines = text.splitlines()
    if whole or len(lines) <= LONGEST:
        return text
    return "\n".join([*lines[:LONGEST], f"... {len(lines) - LONGEST} more lines: --view {view}"])

"""The interpreter: executes a parsed Program instance by instance, in plain Python, at the sizes of its arguments.

It is the oracle that the compiler is tested against, so it shares no code with resolution, summation, range inference or the graph: it
reads docs/language.md anew, by brute force. Everything is exact for tiny sizes and hopeless for real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from polyml.dtypes import from_numpy
from polyml.einsum_frontend.interpreter.prepare import prepare
from polyml.einsum_frontend.interpreter.ready import ReadyProgram
from polyml.einsum_frontend.interpreter.run import Run, bind_sizes
from polyml.einsum_frontend.interpreter.types import Type
from polyml.einsum_frontend.interpreter.values import Array, Cell, convert, storage
from polyml.einsum_frontend.syntax import Parameter, Program
from polyml.errors import DTypeError, PolymlError, ShapeError
from polyml.nesting import deeply_nested

__all__ = ["interpret"]

MakeRun = Callable[[ReadyProgram, dict[str, Cell], Mapping[str, int], bool], Run]


@deeply_nested()
def interpret(
    program: Program, *args: object, wide: bool = False, run: MakeRun = Run
) -> Array | tuple[Array, ...] | None:
    """Runs a parsed program on NumPy arrays, numbers and sizes, one per parameter.

    Args:
        wide: compute and store floats in a wider type (f32 in f64, f64 in long double) and round the results only, so that a comparison
            with a compiled kernel sees that kernel's rounding alone.
        run: makes what executes the statements; a subclass of Run may watch (polyml.testing.verify does).

    Returns:
        The returned tensor, or the tuple of them; None without a `return`. Parameters that are assigned are updated in the caller's arrays,
        unless an error is raised, and are themselves returned where the program returns them.

    Raises:
        PolymlError: the program is wrong at all sizes, or at these. IndexError: a gather leaves its tensor.
    """
    with np.errstate(all="ignore"):
        ready = prepare(program)
        if len(args) != len(program.parameters):
            raise ShapeError(f"{program.name} takes {len(program.parameters)} arguments, not {len(args)}")
        given = dict(zip((p.name for p in program.parameters), args, strict=True))
        cells, sizes = _bind(ready, given, wide)
        results = run(ready, cells, sizes, wide).run()
        for name in ready.assigned:
            array = given[name]
            assert isinstance(array, np.ndarray), "internal: checked when bound"
            array[...] = cells[name].values.astype(array.dtype)
        if results is None:
            return None
        final = tuple(_final(ready, name, cell, given) for name, cell in results)
    return final[0] if len(final) == 1 else final


def _final(ready: ReadyProgram, name: str, cell: Cell, given: Mapping[str, object]) -> Array:
    array = given.get(name)
    if name in ready.assigned and isinstance(array, np.ndarray):
        return array
    return cell.values.astype(cell.type.dtype.numpy)


def _bind(ready: ReadyProgram, given: Mapping[str, object], wide: bool) -> tuple[dict[str, Cell], dict[str, int]]:
    """Cells (copies) of the tensors and scalars, and the values of all sizes."""
    cells: dict[str, Cell] = {}
    sizes: dict[str, int] = {}
    for p in ready.source.parameters:
        if p.is_size:
            sizes[p.name] = _size(p, given[p.name])
        else:
            cells[p.name] = _cell(p, given[p.name], wide, written=p.name in ready.assigned)
    for name in ready.assigned:
        for other, value in given.items():
            if other != name and isinstance(value, np.ndarray) and np.shares_memory(value, given[name]):
                raise PolymlError(f"the arguments {name} and {other} overlap, and {name} is written")
    bind_sizes(ready, cells, sizes)
    return cells, sizes


def _size(p: Parameter, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DTypeError(f"{p.name} is an int, not {type(value).__name__}", span=p.span)
    return int(value)


def _cell(p: Parameter, value: object, wide: bool, *, written: bool) -> Cell:
    assert p.dtype is not None, "internal: sizes have no cell"
    if p.shape is None:
        scalar = np.asarray(value)
        if scalar.ndim:
            raise ShapeError(f"{p.name} is a scalar, not an array of shape {scalar.shape}", span=p.span)
        number = convert(scalar, Type(p.dtype, weak=True), p.dtype, wide, rounded=True)
        return Cell(np.array(number, storage(p.dtype, wide)), None, Type(p.dtype))
    if not isinstance(value, np.ndarray):
        raise DTypeError(f"{p.name} is an array, not {type(value).__name__}", span=p.span)
    if from_numpy(value.dtype) != p.dtype:
        raise DTypeError(f"{p.name} is {p.dtype}, not {value.dtype}", span=p.span)
    if value.ndim != len(p.shape):
        raise ShapeError(f"{p.name} has {len(p.shape)} dimensions, not {value.ndim}", span=p.span)
    if written and not value.flags.writeable:
        raise PolymlError(f"{p.name} is written, and its array is read-only", span=p.span)
    return Cell(np.array(value, dtype=storage(p.dtype, wide), order="C"), None, Type(p.dtype))

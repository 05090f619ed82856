"""Memory of a call on the slow path: arguments in a kernel's layouts, checks of the written arrays, and places for the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyml.errors import ArgumentError, ShapeError
from polyml.runtime.arguments import (
    Array,
    Layout,
    Prepared,
    empty_with_layout,
    layout_of,
    overlaps_itself,
    share_memory,
    shown_type,
)
from polyml.runtime.recycle import empty
from polyml.runtime.signature import ArrayParameter, KernelSignature, Parameter, Result
from polyml.shown import counted

__all__ = ["check_writes", "fit", "result_arrays"]


def check_writes(parameters: Sequence[Parameter], prepared: Sequence[Prepared]) -> None:
    """Raises ArgumentError unless every written array may be written and shares no memory with another argument."""
    written = [k for k, p in enumerate(parameters) if _is_written(p)]
    for k in written:
        check_writable(parameters[k].name, prepared[k])
    for k in written:
        target = np.asarray(prepared[k].given)
        for other, argument in enumerate(prepared):
            if other == k or not isinstance(argument.value, np.ndarray):
                continue
            if share_memory(target, np.asarray(argument.given)):
                name, second = parameters[k].name, parameters[other].name
                raise ArgumentError(
                    f"argument {name} is updated in place, and it shares memory with argument {second}",
                    hint=f"pass a copy of {second}",
                )


def _is_written(parameter: Parameter) -> bool:
    return isinstance(parameter, ArrayParameter) and parameter.written


def result_arrays(
    signature: KernelSignature, sizes: Mapping[str, int], out: object, prepared: Sequence[Prepared]
) -> list[tuple[Array, Array | None]]:
    """Per result the array that the kernel fills, and the caller's `out` array, which may be the same.

    Raises:
        ArgumentError: `out` does not fit, or shares memory with itself or with what is updated in place.
    """
    shapes = [tuple(extent.evaluate(sizes) for extent in r.shape) for r in signature.results]
    if out is None:
        return [(_empty(s, r), None) for s, r in zip(shapes, signature.results, strict=True)]
    places = out if isinstance(out, tuple) else (out,)
    if len(places) != len(shapes):
        raise ArgumentError(
            f"out= has {counted(len(places), 'array')}, and {signature.name} has {counted(len(shapes), 'new result')}"
        )
    inputs = [argument.value for argument in prepared if isinstance(argument.value, np.ndarray)]
    updated = [
        (p.name, np.asarray(a.given)) for p, a in zip(signature.parameters, prepared, strict=True) if _is_written(p)
    ]
    made: list[tuple[Array, Array | None]] = []
    for place, shape, result in zip(places, shapes, signature.results, strict=True):
        dtype = result.dtype.numpy
        if not isinstance(place, np.ndarray) or place.shape != shape or place.dtype.newbyteorder("=") != dtype:
            found = (
                f"{shown_type(place.dtype)} {place.shape}" if isinstance(place, np.ndarray) else type(place).__name__
            )
            raise ArgumentError(f"out= for {result.label} must be an array of {result.dtype} {shape}, and is {found}")
        if not place.flags.writeable:
            raise ArgumentError(f"out= for {result.label} is read-only")
        if overlaps_itself(place):
            raise ArgumentError(f"out= for {result.label} has elements that share memory")
        for other, before in zip(signature.results, made, strict=False):
            if before[1] is not None and share_memory(place, before[1]):
                raise ArgumentError(f"out= for {result.label} shares memory with that for {other.label}")
        for name, target in updated:
            if share_memory(place, target):
                raise ArgumentError(
                    f"out= for {result.label} shares memory with argument {name}, which is updated in place"
                )
        direct = (
            place.flags.aligned
            and place.dtype == dtype
            and _has_strides(place, result)
            and not any(share_memory(place, a) for a in inputs)
        )
        made.append((np.asarray(place) if direct else _empty(shape, result), place))
    return made


def _has_strides(place: Array, result: Result) -> bool:
    if result.strides is None:
        return place.flags.c_contiguous
    wanted = (stride * place.itemsize for stride in result.strides)
    return all(n == 1 or stride == want for n, stride, want in zip(place.shape, place.strides, wanted, strict=True))


def _empty(shape: tuple[int, ...], result: Result) -> Array:
    if result.strides is None:
        return empty(shape, result.dtype.numpy)
    return empty_with_layout(Layout(result.dtype, shape, result.strides))


def fit(parameter: ArrayParameter, argument: Prepared, sizes: Mapping[str, int]) -> Prepared:
    """The argument in the layout that the kernel is compiled for."""
    shape = tuple(extent.evaluate(sizes) for extent in parameter.shape)
    value = argument.value
    assert isinstance(value, np.ndarray), "internal: an array argument"
    if value.shape != shape:
        raise ShapeError(f"argument {parameter.name} has shape {value.shape}, and this kernel is compiled for {shape}")
    wanted = Layout(parameter.dtype, shape, parameter.strides)
    if layout_of(value) == wanted:
        return argument
    copy = empty_with_layout(wanted)
    np.copyto(copy, value)
    if overlaps_itself(copy):
        _check_broadcast(parameter, value, copy)
    return Prepared(copy, argument.given, copied=True)


def _check_broadcast(parameter: ArrayParameter, value: Array, copy: Array) -> None:
    """A layout whose elements share memory holds only values that agree there, and none that change."""
    if parameter.written or not np.array_equal(copy, value, equal_nan=True):
        raise ArgumentError(
            f"argument {parameter.name} does not fit the strides {parameter.strides} that this kernel is compiled for"
        )


def check_writable(name: str, argument: Prepared) -> None:
    if not isinstance(argument.given, np.ndarray):
        raise ArgumentError(
            f"argument {name} is updated in place, so it must be an array, not {type(argument.given).__name__}"
        )
    if not argument.given.flags.writeable:
        raise ArgumentError(f"argument {name} is updated in place, and it is read-only", hint="pass a copy")
    if overlaps_itself(argument.given):
        raise ArgumentError(f"argument {name} is updated in place, and its elements share memory", hint="pass a copy")

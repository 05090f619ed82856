"""Arguments on the slow path: bound to parameters, converted where that is harmless, and refused with the parameter's name where it is not.

What is taken: any ndarray of the parameter's element type and rank (a copy in native byte order replaces a byte-swapped or misaligned one and is written back if the program
updates it), lists and nested numbers, and for scalars whatever converts without loss of kind. Sizes are compared where the program is instantiated.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polyml.dtypes import DTYPES, DType, boolean, from_numpy
from polyml.errors import ArgumentError, DTypeError, ShapeError
from polyml.records import dataclass
from polyml.sets.affine import Extent
from polyml.shown import counted
from polyml.source import Span

__all__ = [
    "AnyInt",
    "AnySize",
    "Array",
    "Layout",
    "Prepared",
    "Wanted",
    "bind",
    "empty_with_layout",
    "layout_of",
    "overlaps_itself",
    "prepare",
    "share_memory",
    "shown_type",
    "strides_overlap",
]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter: a tensor of `rank`, a scalar (rank None), or an int (dtype None too). span: its declaration, where there is one."""

    name: str
    dtype: DType | None
    rank: int | None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What a kernel is specialized to, per array argument. strides: in elements; None: contiguous, row-major."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AnySize:
    """The same where some extents stay symbolic; such arrays are contiguous, row-major. example: the shape in the call that asks for the kernel."""

    dtype: DType
    shape: tuple[Extent, ...]
    example: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AnyInt:
    """An `int` argument that stays symbolic. example: its value in the call that asks for the kernel."""

    example: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An argument that is ready to use. value: an aligned native ndarray, or a scalar as a 0-d one, or an int. given: the caller's object; is it `value` itself, or a view of
    the same memory, when `copied` is false."""

    value: Array | int
    given: object
    copied: bool


def bind(
    name: str, parameters: Sequence[str], args: Sequence[object], keywords: Mapping[str, object]
) -> tuple[list[object], object]:
    """The arguments in the order of the parameters, and `out` (None when it is not given).

    Raises:
        ArgumentError: too many, too few, unknown, or given twice.
    """
    if len(args) > len(parameters):
        raise ArgumentError(
            f"{name} takes {counted(len(parameters), 'argument')} ({', '.join(parameters)}), and {len(args)} were given"
        )
    bound: dict[str, object] = dict(zip(parameters, args, strict=False))
    out: object = None
    for key, value in keywords.items():
        if key in bound:
            raise ArgumentError(f"{name} got two values for {key}")
        if key in parameters:
            bound[key] = value
        elif key == "out":
            out = value
        else:
            raise ArgumentError(
                f"{name} has no parameter {key}", hint=f"its parameters: {', '.join(parameters)}, and out="
            )
    if missing := [parameter for parameter in parameters if parameter not in bound]:
        raise ArgumentError(f"{name} misses {', '.join(missing)}", hint=f"its parameters: {', '.join(parameters)}")
    return [bound[parameter] for parameter in parameters], out


def prepare(wanted: Wanted, given: object) -> Prepared:
    """The argument for one parameter.

    Raises:
        DTypeError: another element type. ShapeError: another rank. ArgumentError: not a number or an array, or elements of it are masked.
    """
    masks = sys.modules.get("numpy.ma")  # 6 ms to import, and who has not has no masked array
    if masks is not None and isinstance(given, masks.MaskedArray):
        _check_unmasked(wanted, given)
    if wanted.dtype is None:
        return Prepared(_integer(wanted, given), given, copied=True)
    if wanted.rank is None:
        return Prepared(_scalar(wanted, wanted.dtype, given), given, copied=True)
    array = _array(wanted, given)
    fresh = not isinstance(given, np.ndarray)
    if fresh and isinstance(given, list | tuple | int | float | bool):
        array = _in_type(wanted, wanted.dtype, array)
    _check_dtype(wanted, wanted.dtype, array)
    if array.ndim != wanted.rank:
        raise ShapeError(
            f"argument {wanted.name} has {counted(array.ndim, 'dimension')} {array.shape}, and the program declares {wanted.rank}",
            span=wanted.span,
        )
    if array.dtype != wanted.dtype.numpy or not array.flags.aligned or any(s % array.itemsize for s in array.strides):
        return Prepared(np.array(array, wanted.dtype.numpy, order="C", copy=True), given, copied=True)
    return Prepared(array, given, copied=fresh)


def _check_unmasked(wanted: Wanted, given: np.ma.MaskedArray[Any, Any]) -> None:
    """A program knows no masks: it would read what lies under them, which nobody means."""
    masked = int(np.count_nonzero(np.ma.getmaskarray(given)))
    if masked:
        name = wanted.name
        raise ArgumentError(
            f"argument {name} is a masked array, {counted(masked, 'element')} of which {'is' if masked == 1 else 'are'} masked, and a program has no masks",
            span=wanted.span,
            hint=f"pass {name}.filled(..), or {name}.data and the mask as a parameter of its own, for where(..)",
        )


def _array(wanted: Wanted, given: object) -> Array:
    try:
        return np.asarray(given)
    except ValueError as fault:  # lists whose rows differ in length
        raise ArgumentError(f"argument {wanted.name} is no array: {fault}", span=wanted.span) from None


def _in_type(wanted: Wanted, dtype: DType, array: Array) -> Array:
    """Python's own numbers, which have no width, in the parameter's type; as they are, where it is of another kind."""
    if not array.size:
        return array.astype(dtype.numpy)
    integers = array.dtype.kind in "iu" and dtype.is_integer
    if not integers and not np.can_cast(array.dtype, dtype.numpy, "same_kind"):
        return array
    made = array.astype(dtype.numpy)
    if integers and (lost := made != array).any():
        raise ArgumentError(f"argument {wanted.name} has {array[lost][0]}, which {dtype} cannot hold", span=wanted.span)
    return made


def shown_type(dtype: np.dtype[np.generic]) -> str:
    """The language's name of an element type, or else NumPy's."""
    try:
        return from_numpy(dtype).name
    except DTypeError:
        return str(dtype)


def _check_dtype(wanted: Wanted, dtype: DType, array: Array) -> None:
    if array.dtype == dtype.numpy:
        return
    if array.ndim == 0 and array.dtype.kind in "OUS":  # what NumPy makes of anything that is no array
        item = array.item()
        found = "None" if item is None else f"of type {type(item).__name__}"
        raise DTypeError(f"argument {wanted.name} must be an array of {dtype}, and is {found}", span=wanted.span)
    found = shown_type(array.dtype)
    hint = f"convert it to {dtype}" + (f", or declare {wanted.name}: {found}" if found in DTYPES else "")
    if found != dtype.name:
        raise DTypeError(
            f"argument {wanted.name} has dtype {found}, and the program declares {dtype}",
            span=wanted.span,
            hint=hint,
        )


def _index(wanted: Wanted, given: object) -> int:
    try:
        return operator.index(given)  # type: ignore[arg-type]  # what is not an index raises TypeError
    except TypeError:
        raise ArgumentError(f"argument {wanted.name} must be an integer, and is {given!r}", span=wanted.span) from None


def _shown(number: object) -> str:
    """As text, which Python refuses for thousands of digits."""
    if isinstance(number, int) and number.bit_length() > 256:
        return f"a number of {number.bit_length()} bits"
    return str(number)


def _integer(wanted: Wanted, given: object) -> int:
    value = _index(wanted, given)
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"argument {wanted.name} = {_shown(value)} does not fit into 64 bits", span=wanted.span)
    return value


def _no_number(wanted: Wanted, dtype: DType, given: object) -> ArgumentError:
    article = "an" if dtype.name[0] in "fi" else "a"  # an f32, an i8; a u8, a c64, a bool
    message = f"argument {wanted.name} must be {article} {dtype} number, and is "
    if isinstance(given, np.ndarray):
        shape = " ".join(map(str, given.shape))
        hint = f'declare {wanted.name}: {dtype}["{shape}"], or pass one element' if given.ndim else None
        return ArgumentError(
            f"{message}an array of shape {given.shape} and dtype {given.dtype}", span=wanted.span, hint=hint
        )
    return ArgumentError(f"{message}{_shown(given) if isinstance(given, int) else repr(given)}", span=wanted.span)


def _scalar(wanted: Wanted, dtype: DType, given: object) -> Array:
    """A number as a 0-d array: complex numbers take floats, floats take integers too, integers do not take floats, bool takes bools."""
    value = _array(wanted, given)
    if value.dtype.name == "bfloat16":
        value = value.astype(np.float32)
    kinds = {"c": "cfiub", "f": "fiub", "i": "iub", "u": "iub", "b": "b"}[dtype.kind]
    if value.ndim != 0 or value.dtype.kind not in kinds + "O":
        raise _no_number(wanted, dtype, given)
    number = value.item()
    if dtype.is_integer:
        number = _index(wanted, number)
    elif isinstance(number, int) and dtype != boolean:
        number = _float(wanted, number)
    if dtype.is_complex and isinstance(number, int | float | complex):
        with np.errstate(over="ignore"):
            return np.array(number).astype(dtype.numpy)
    if not isinstance(number, bool if dtype == boolean else int | float):  # an int may be an object to NumPy: 2**64
        raise _no_number(wanted, dtype, given)
    if dtype.is_integer:
        info = np.iinfo(f"{dtype.kind}{dtype.itemsize}")
        if not info.min <= number <= info.max:
            raise ArgumentError(f"argument {wanted.name} = {_shown(number)} does not fit {dtype}", span=wanted.span)
    with np.errstate(over="ignore"):  # a float that f32 cannot hold becomes infinite, as in the compiled entry point
        return np.array(number).astype(dtype.numpy)


def _float(wanted: Wanted, number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ArgumentError(
            f"argument {wanted.name} = {_shown(number)} does not fit {wanted.dtype}", span=wanted.span
        ) from None


def layout_of(array: Array) -> Layout:
    """The layout, canonical: equal for arrays that one kernel serves. The stride of an extent of 1 is 0."""
    if array.flags.c_contiguous:
        strides = None
    else:
        strides = tuple(0 if n == 1 else s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True))
    return Layout(from_numpy(array.dtype), array.shape, strides)


def overlaps_itself(array: Array) -> bool:
    """Whether two elements may lie at one address (exact for extents and strides in the usual nesting, else true)."""
    return strides_overlap(array.shape, array.strides, array.itemsize)


def strides_overlap(shape: Sequence[int], strides: Sequence[int], reach: int = 1) -> bool:
    """Whether two elements of `reach` units each may share memory where strides are so many units."""
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True)):
        if extent == 0:
            return False
        if extent > 1:
            if stride < reach:
                return True
            reach += stride * (extent - 1)
    return False


def share_memory(left: Array, right: Array) -> bool:
    """Whether they have a byte in common; true when finding out takes too long."""
    try:
        return bool(np.shares_memory(left, right, max_work=100_000))  # type: ignore[arg-type]  # any number; the stub says 0 or -1
    except np.exceptions.TooHardError:
        return True


def empty_with_layout(layout: Layout) -> Array:
    """A new array with exactly these strides."""
    dtype = layout.dtype.numpy
    if layout.strides is None or 0 in layout.shape:
        return np.empty(layout.shape, dtype)
    reaches = [(extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True)]
    below = -sum(min(reach, 0) for reach in reaches)
    memory = np.empty(below + sum(max(reach, 0) for reach in reaches) + 1, dtype)
    strides = tuple(stride * dtype.itemsize for stride in layout.strides)
    return as_strided(memory[below:], layout.shape, strides)

"""More than numpy.einsum says: affine subscripts, other semirings, masks.

`einsum("n c h+r w+s, k c r s -> n k h w", x, f)`, `einsum("ij,jk->ik", a, b, semiring="min_plus")`, `einsum("qd,kd->qk", q, k, where=mask)`. Each becomes the text of
a program and goes through the pipeline as one; sizes of index ranges, bounds and types are judged there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyml.dtypes import DType, from_numpy
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.syntax import Program
from polyml.einsum_numpy.path import Path, find_path, with_limit
from polyml.einsum_numpy.semirings import SEMIRINGS, Semiring, semiring_of
from polyml.einsum_numpy.steps import Value, read, statements
from polyml.einsum_numpy.subscripts import labels_of, wrong_number, wrong_rank
from polyml.errors import ArgumentError, ShapeError, SubscriptsSyntaxError
from polyml.records import dataclass
from polyml.runtime.foreign.arrays import seen
from polyml.shown import counted
from polyml.source import Source, Span

__all__ = ["Request", "is_extended", "program_of", "refuse_numpys", "request_of"]

_AFFINE = re.compile(r"[+*/%()0-9_]|-(?!>)")
_ENTRY = re.compile(r"[A-Za-z0-9_+*/%()-]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KEYWORDS = frozenset({"dtype", "order", "casting"})
_CAPITAL = "_capital"
"""Ends the index of an upper-case label: sizes alone are upper-case in programs."""

Shape = tuple[bool, ...]
"""Per dimension, whether its extent is 1."""


@dataclass(frozen=True, slots=True)
class Request:
    """What decides about the program, and nothing else. operands: element type, and which dimensions have extent 1; the mask's is the last if `mask` (its subscripts) is there."""

    subscripts: str
    semiring: Semiring
    operands: tuple[tuple[DType, Shape], ...]
    mask: str | None
    path: Path | None = None


def is_extended(subscripts: str) -> bool:
    """Whether the subscripts are in words separated by spaces with affine ones among them: nothing that numpy.einsum could take."""
    return _AFFINE.search(subscripts) is not None


def request_of(
    subscripts: str,
    operands: Sequence[object],
    semiring: object,
    where: object,
    optimize: object = True,
    *,
    look: Callable[[object], np.ndarray[Any, Any]] = seen,
) -> tuple[Request, tuple[object, ...]]:
    """The request of a call, and the arguments of its program.

    Args:
        where: a mask with the subscripts of the result, or a pair of subscripts and a mask; None: none.
        optimize: False: one loop nest; ("greedy", n): no intermediate has more than n elements.
        look: an array with the type and shape of an operand.

    Raises:
        ArgumentError: an unknown semiring, or a mask that is not of bools. DTypeError: an element type that no kernel has.
        ShapeError: extents of one label that differ (affine subscripts are checked with their program).
    """
    mask: str | None = None
    arguments = tuple(operands)
    if where is not None:
        given = where[1] if isinstance(where, tuple) and len(where) == 2 and isinstance(where[0], str) else where
        mask = where[0] if given is not where else subscripts.partition("->")[2]  # type: ignore[index]  # a pair
        arguments = (*arguments, given)
    kinds, shapes = [], []
    for argument in arguments:
        array = look(argument)
        shapes.append(array.shape)
        kinds.append((from_numpy(array.dtype), tuple(extent == 1 for extent in array.shape)))
    if mask is not None and kinds[-1][0].kind != "b":
        raise ArgumentError(f"where= is a mask of bools, not of {kinds[-1][0]}")
    ring = semiring_of(semiring)
    if ring == SEMIRINGS["plus_times"] and all(dtype.kind == "b" for dtype, _ in kinds[: len(operands)]):
        ring = SEMIRINGS["or_and"]  # NumPy's sum and product of bools
    request = Request(subscripts, ring, tuple(kinds), mask)
    _check_extents(request, tuple(shapes))
    strategy, limit = with_limit(optimize)
    if len(operands) <= 2 or strategy is False or strategy is None:
        return request, arguments
    if not (strategy is True or (isinstance(strategy, str) and strategy in ("greedy", "optimal"))):
        raise ArgumentError(f"optimize={optimize!r} is no way to choose a path", hint='True, False, or ("greedy", n)')
    return replace(request, path=_path(request, tuple(shapes), limit)), arguments


def program_of(request: Request) -> Program:
    """The program of a request: it takes the operands, then the mask, and returns one tensor.

    Raises:
        SubscriptsSyntaxError, ShapeError: the subscripts are malformed, or do not fit the operands.
    """
    accesses, result = _subscripts(request)
    names = [f"x{k}_" for k in range(len(request.operands))]
    parameters = []
    for name, (dtype, shape) in zip(names, request.operands, strict=True):
        sizes = ", ".join(f"{name.upper()}{k}" for k in range(len(shape)))
        parameters.append(f'{name}: {dtype}["{sizes}"]' if shape else f"{name}: {dtype}")
    values = [
        Value(read(name, access), _labels(access), dtype.name)
        for name, access, (dtype, _) in zip(names, accesses, request.operands, strict=True)
    ]
    mask = None if request.mask is None else values.pop()
    path = request.path or (tuple(range(len(values))),)
    body = statements(request.semiring, values, result, path, _dtype(request), mask)
    text = f"def einsum({', '.join(parameters)}):\n{body}    return out_\n"
    return resolve(parse(Source(text, f"<einsum {request.subscripts!r}>")), {})


def _labels(access: Sequence[str]) -> tuple[str, ...]:
    """The indices in the subscripts of an operand."""
    return tuple(dict.fromkeys(name for entry in access for name in _NAME.findall(entry)))


def _dtype(request: Request) -> DType:
    """The element type of the result (but of or_and's, which is bool)."""
    count = len(request.operands) - (request.mask is not None)
    dtype = from_numpy(np.result_type(*(d.numpy for d, _ in request.operands[:count])))
    return from_numpy(np.dtype("f8")) if request.semiring.kind == "float" and not dtype.is_float else dtype


@functools.lru_cache(maxsize=4096)
def _check_extents(request: Request, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Labels have one extent each, or 1, which is broadcast.

    Raises:
        SubscriptsSyntaxError, ShapeError: the subscripts are malformed, or do not fit the operands.
    """
    if is_extended(request.subscripts + (request.mask or "")):
        return
    found: dict[str, tuple[int, str]] = {}
    for number, (access, shape) in enumerate(zip(_plain(request)[0], shapes, strict=True)):
        here = "where" if request.mask is not None and number == len(shapes) - 1 else f"operand {number}"
        for label, extent in zip(access, shape, strict=True):
            known, there = found.setdefault(label, (extent, here))
            if label != "0" and known != extent:
                name = label.removesuffix(_CAPITAL).upper() if label.endswith(_CAPITAL) else label
                raise ShapeError(f"label {name} has extent {known} in {there} and {extent} in {here} {shape}")


@functools.lru_cache(maxsize=4096)
def _path(request: Request, shapes: tuple[tuple[int, ...], ...], limit: int | None) -> Path | None:
    """The contraction path of operands of these shapes (the mask's is the last); None: one loop nest, since there is nothing to gain, the semiring does not
    distribute, or subscripts or the mask tie the operands together."""
    if is_extended(request.subscripts) or not request.semiring.distributes(_dtype(request)):
        return None
    accesses, result = _subscripts(request)
    labels = [_labels(access) for access in accesses]
    if request.mask is not None and not set(labels.pop()) <= set(result):
        return None
    sizes = {
        entry: extent
        for access, shape in zip(accesses, shapes, strict=True)
        for entry, extent in zip(access, shape, strict=True)
        if _NAME.fullmatch(entry)  # 0: an extent of 1 under a larger label
    }
    return find_path(labels, result, sizes, limit)


def _subscripts(request: Request) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The subscripts of each operand (the mask's last), and the indices of the result."""
    if not is_extended(request.subscripts + (request.mask or "")):
        return _plain(request)
    whole = Source(request.subscripts, "<einsum subscripts>")
    left, arrow, right = request.subscripts.partition("->")
    everything = Span(whole, 1, 0, 1, max(1, len(request.subscripts)))
    if not arrow or "->" in right:
        raise SubscriptsSyntaxError("affine subscripts need one '->' and the result's indices", span=everything)
    pieces = left.split(",") + ([] if request.mask is None else [request.mask])
    if len(pieces) != len(request.operands):
        count = len(request.operands) - (request.mask is not None)
        raise wrong_number(left.count(",") + 1, count, everything)
    accesses = []
    for position, (piece, (_, shape)) in enumerate(zip(pieces, request.operands, strict=True)):
        entries = tuple(piece.split())
        if bad := [entry for entry in entries if not _ENTRY.fullmatch(entry)]:
            hint = "subscripts are separated by spaces, operands by commas: 'n c h+r, k c r -> n k h'"
            raise SubscriptsSyntaxError(f"{bad[0]!r} is no subscript", span=everything, hint=hint)
        if len(entries) != len(shape):
            hint = "beside sums, digits and the like subscripts are separated by spaces: 'n c h+r, k c r -> n k h'"
            raise wrong_rank(position, len(shape), counted(len(entries), "subscript"), everything, hint)
        accesses.append(entries)
    result = tuple(right.split())
    if not all(_NAME.fullmatch(name) for name in result) or len(set(result)) != len(result):
        raise SubscriptsSyntaxError("the result's subscripts are different indices", span=everything)
    return accesses, result


def _plain(request: Request) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Subscripts in NumPy's form; a dimension of extent 1 under a larger label is read at 0."""
    left, arrow, right = request.subscripts.partition("->")
    shapes = [shape for _, shape in request.operands]
    if request.mask is None:
        labels = labels_of(request.subscripts, [len(shape) for shape in shapes])
    else:
        own = labels_of(request.subscripts, [len(shape) for shape in shapes[:-1]])
        mask = request.mask if arrow or request.mask else "".join(own.result)
        labels = labels_of(f"{left},{mask}{arrow}{right}", [len(shape) for shape in shapes])
        if labels.result != own.result:
            raise ShapeError("with where=, the result's subscripts are needed: 'ij,jk->ik'")
    small: dict[str, bool] = {}
    for operand, shape in zip(labels.operands, shapes, strict=True):
        for label, single in zip(operand, shape, strict=True):
            small[label] = small.get(label, True) and single
    accesses = [
        tuple(_index(label) if single <= small[label] else "0" for label, single in zip(operand, shape, strict=True))
        for operand, shape in zip(labels.operands, shapes, strict=True)
    ]
    return accesses, tuple(map(_index, labels.result))


def _index(label: str) -> str:
    return f"{label.lower()}{_CAPITAL}" if label.isupper() else label


def refuse_numpys(options: Mapping[str, Any]) -> None:
    """NumPy's keywords have no meaning here.

    Raises:
        ArgumentError: one is given.
    """
    if given := sorted(_KEYWORDS & set(options)):
        raise ArgumentError(f"{given[0]}= does not go with affine subscripts, semiring=, where= and a GPU")

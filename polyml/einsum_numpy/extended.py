"""More than numpy.einsum says: affine subscripts, other semirings, masks.

`einsum("n c h+r w+s, k c r s -> n k h w", x, f)`, `einsum("ij,jk->ik", a, b, semiring="min_plus")`, `einsum("qd,kd->qk", q, k, where=mask)`. Each becomes the text of
a program and goes through the pipeline as one; sizes of index ranges, bounds and types are judged there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyml.dtypes import DType, from_numpy
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.syntax import Program
from polyml.einsum_numpy.program import WIDE
from polyml.einsum_numpy.semirings import Semiring, semiring_of
from polyml.einsum_numpy.subscripts import labels_of
from polyml.errors import ArgumentError, ShapeError, SubscriptsSyntaxError
from polyml.runtime.foreign import viewed
from polyml.source import Source, Span

__all__ = ["Request", "is_extended", "program_of", "refuse_numpys", "request_of"]

_AFFINE = re.compile(r"[+*/%()0-9_]|-(?!>)")
_ENTRY = re.compile(r"[A-Za-z0-9_+*/%()-]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KEYWORDS = frozenset({"dtype", "order", "casting", "optimize"})

Shape = tuple[bool, ...]
"""Per dimension, whether its extent is 1."""


@dataclass(frozen=True, slots=True)
class Request:
    """What decides about the program, and nothing else. operands: element type, and which dimensions have extent 1; the mask's is the last if `mask` (its subscripts) is there."""

    subscripts: str
    semiring: Semiring
    operands: tuple[tuple[DType, Shape], ...]
    mask: str | None


def is_extended(subscripts: str) -> bool:
    """Whether the subscripts are in words separated by spaces with affine ones among them: nothing that numpy.einsum could take."""
    return _AFFINE.search(subscripts) is not None


def request_of(
    subscripts: str, operands: Sequence[object], semiring: object, where: object
) -> tuple[Request, tuple[object, ...]]:
    """The request of a call, and the arguments of its program.

    Args:
        where: a mask with the subscripts of the result, or a pair of subscripts and a mask; None: none.

    Raises:
        ArgumentError: an unknown semiring, or a mask that is not of bools. DTypeError: an element type that no kernel has.
    """
    mask: str | None = None
    arguments = tuple(operands)
    if where is not None:
        given = where[1] if isinstance(where, tuple) and len(where) == 2 and isinstance(where[0], str) else where
        mask = where[0] if given is not where else subscripts.partition("->")[2]  # type: ignore[index]  # a pair
        arguments = (*arguments, given)
    kinds = []
    for argument in arguments:
        array = np.asarray(viewed(argument))
        kinds.append((from_numpy(array.dtype), tuple(extent == 1 for extent in array.shape)))
    if mask is not None and kinds[-1][0].kind != "b":
        raise ArgumentError(f"where= is a mask of bools, not of {kinds[-1][0]}")
    return Request(subscripts, semiring_of(semiring), tuple(kinds), mask), arguments


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
    reads = [_read(name, access) for name, access in zip(names, accesses, strict=True)]
    used = dict.fromkeys(n for access in accesses for entry in access for n in _NAME.findall(entry))
    summed = [name for name in used if name not in result]
    body = _statements(request, reads, result, summed)
    text = f"def einsum({', '.join(parameters)}):\n{body}    return out_\n"
    return resolve(parse(Source(text, f"<einsum {request.subscripts!r}>")), {})


def _read(name: str, entries: Sequence[str]) -> str:
    return f"{name}[{', '.join(entries)}]" if entries else name


def _statements(request: Request, reads: list[str], result: Sequence[str], summed: list[str]) -> str:
    semiring = request.semiring
    count = len(reads) - (request.mask is not None)
    dtypes = [dtype for dtype, _ in request.operands[:count]]
    dtype = from_numpy(np.result_type(*(d.numpy for d in dtypes)))
    if semiring.kind == "float" and not dtype.is_float:
        dtype = from_numpy(np.dtype("f8"))
    form = WIDE.get(dtype.name, dtype.name) if summed and semiring.reducer in ("sum", "prod") else dtype.name
    if semiring.kind == "bool":
        factors = [read if d.kind == "b" else f"({read} != 0)" for read, d in zip(reads, dtypes, strict=False)]
        form = "bool"
    else:
        factors = [read if d.name == form else f"{form}({read})" for read, d in zip(reads, dtypes, strict=False)]
    value = semiring.combine(factors)
    lowest = Semiring("max", "").identity(dtype) if semiring.stable else semiring.identity(dtype)
    if request.mask is not None:
        value = f"where({reads[-1]}, {value}, {lowest})"
    target = _read("out_", result)
    if not summed:
        return f"    {target} = {value}\n"
    items = ", ".join(summed)
    if semiring.stable:
        peak, base = _read("peak_", result), _read("base_", result)
        return (
            f"    {peak} = max[{items}]({value})\n"
            f"    {base} = where(abs({peak}) < inf, {peak}, 0)\n"
            f"    {target} = {base} + log(sum[{items}](exp({value} - {base})))\n"
        )
    reduced = f"{semiring.reducer}[{items}]({value})"
    narrowed = semiring.kind != "bool" and form != dtype.name
    return f"    {target} = {f'{dtype}({reduced})' if narrowed else reduced}\n"


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
        raise ShapeError(f"the subscripts name {left.count(',') + 1} operands, but {count} are given", span=everything)
    accesses = []
    for piece, (_, shape) in zip(pieces, request.operands, strict=True):
        entries = tuple(piece.split())
        if bad := [entry for entry in entries if not _ENTRY.fullmatch(entry)]:
            hint = "subscripts are separated by spaces, operands by commas: 'n c h+r, k c r -> n k h'"
            raise SubscriptsSyntaxError(f"{bad[0]!r} is no subscript", span=everything, hint=hint)
        if len(entries) != len(shape):
            raise ShapeError(f"an operand has {len(shape)} dimensions, but {len(entries)} subscripts", span=everything)
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
    return f"{label.lower()}_capital" if label.isupper() else label


def refuse_numpys(options: Mapping[str, Any]) -> None:
    """NumPy's keywords have no meaning here.

    Raises:
        ArgumentError: one is given.
    """
    if given := sorted(_KEYWORDS & set(options)):
        raise ArgumentError(f"{given[0]}= does not go with affine subscripts, semiring= and where=")

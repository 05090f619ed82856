"""numpy.einsum's subscripts as a program: "ik,kj->ij" is `out[i, j] = sum[k](x0[i, k] * x1[k, j])`.

What NumPy does: spaces are ignored; a letter twice in one operand takes its diagonal; without `->` the result has the letters that occur once, in
alphabetical order (capitals first), behind the dimensions of `...`; dimensions of `...` are aligned at the right.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from polyml.dtypes import DType
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.syntax import Program
from polyml.errors import EinsumSyntaxError, ShapeError
from polyml.source import Source, Span

__all__ = ["program_from_subscripts"]

_ELLIPSIS = "..."


def program_from_subscripts(subscripts: str, operands: Sequence[tuple[DType, int]]) -> Program:
    """The resolved program of numpy.einsum's `subscripts`; `operands` are the (dtype, rank) of each operand. It takes them in order and returns one tensor.

    Equal letters need equal sizes: broadcasting of size 1 under one letter is not done. The letter i becomes the index `i` and the size `I`, a capital I `i_capital` and
    `I_CAPITAL`; dimensions of `...` become `d0`, `d1`, counted from the right.

    Raises:
        EinsumSyntaxError: the subscripts are not in NumPy's form.
        ShapeError: they do not fit the operands' ranks.
    """
    whole = Source(subscripts, "<einsum subscripts>")
    left, arrow, right = subscripts.partition("->")
    if "->" in right:
        raise _error(whole, subscripts.rindex("->"), 2, "the subscripts have more than one '->'")
    pieces = left.split(",")
    if len(pieces) != len(operands):
        message = f"the subscripts name {len(pieces)} operands, but {len(operands)} are given"
        raise ShapeError(message, span=Span(whole, 1, 0, 1, max(1, len(left))))
    labels: list[list[str]] = []
    offset = 0
    for piece, (_, rank) in zip(pieces, operands, strict=True):
        labels.append(_operand_labels(piece, rank, offset, whole))
        offset += len(piece) + 1
    if arrow:
        result = _result_labels(right, len(left) + len(arrow), labels, whole)
    else:
        result = _implicit_result(labels)
    return _program(labels, result, [dtype for dtype, _ in operands], subscripts)


def _operand_labels(piece: str, rank: int, offset: int, whole: Source) -> list[str]:
    """One label per dimension: a letter, or d0, d1, ... (from the right) for those under `...`."""
    parts = _split(piece, offset, whole)
    letters = len(parts) - (_ELLIPSIS in parts)
    span = Span(whole, 1, offset, 1, offset + max(1, len(piece)))
    if _ELLIPSIS in parts:
        if letters > rank:
            raise ShapeError(f"an operand has {rank} dimensions, but at least {letters} subscripts", span=span)
        at = parts.index(_ELLIPSIS)
        hidden = [f"d{n}" for n in reversed(range(rank - letters))]
        return [*parts[:at], *hidden, *parts[at + 1 :]]
    if letters != rank:
        raise ShapeError(f"an operand has {rank} dimensions, but {letters} subscripts", span=span)
    return parts


def _split(piece: str, offset: int, whole: Source) -> list[str]:
    parts: list[str] = []
    position = 0
    while position < len(piece):
        character = piece[position]
        if piece.startswith(_ELLIPSIS, position):
            if _ELLIPSIS in parts:
                raise _error(whole, offset + position, 3, "an operand has `...` twice")
            parts.append(_ELLIPSIS)
            position += 3
            continue
        if character in string.ascii_letters:
            parts.append(character)
        elif not character.isspace():
            hint = "subscripts are letters and `...`, operands are separated by commas: 'ik,kj->ij'"
            raise _error(whole, offset + position, 1, f"{character!r} is no subscript", hint)
        position += 1
    return parts


def _result_labels(right: str, offset: int, labels: list[list[str]], whole: Source) -> list[str]:
    parts = _split(right, offset, whole)
    known = {label for operand in labels for label in operand}
    hidden = _hidden(labels)
    if _ELLIPSIS not in parts and hidden:
        raise _error(whole, offset, max(1, len(right)), "the result lacks `...`, and NumPy does not sum over it")
    result: list[str] = []
    for part in parts:
        if part == _ELLIPSIS:
            result += hidden
            continue
        at = offset + right.index(part)
        if part not in known:
            raise _error(whole, at, 1, f"the result has {part!r}, which no operand has")
        if part in result:
            raise _error(whole, offset + right.rindex(part), 1, f"the result has {part!r} twice")
        result.append(part)
    return result


def _implicit_result(labels: list[list[str]]) -> list[str]:
    every = [label for operand in labels for label in operand]
    once = sorted(label for label in every if len(label) == 1 and every.count(label) == 1)
    return [*_hidden(labels), *once]


def _hidden(labels: list[list[str]]) -> list[str]:
    """The labels of the dimensions under `...`, leftmost first."""
    count = max(sum(len(label) > 1 for label in operand) for operand in labels)
    return [f"d{n}" for n in reversed(range(count))]


def _program(labels: list[list[str]], result: list[str], dtypes: list[DType], subscripts: str) -> Program:
    """The program as text, read back: so that errors of later stages have something to point at."""
    parameters = []
    accesses = []
    for number, (operand, dtype) in enumerate(zip(labels, dtypes, strict=True)):
        shape = " ".join(map(_size, operand))
        parameters.append(f'x{number}: {dtype.name}["{shape}"]' if operand else f"x{number}: {dtype.name}")
        accesses.append(f"x{number}[{', '.join(map(_index, operand))}]" if operand else f"x{number}")
    summed = list(dict.fromkeys(_index(s) for operand in labels for s in operand if s not in result))
    value = " * ".join(accesses)
    if summed:
        value = f"sum[{', '.join(summed)}]({value})"
    target = f"out[{', '.join(map(_index, result))}]" if result else "out"
    text = f"def einsum({', '.join(parameters)}):\n    {target} = {value}\n    return out\n"
    return resolve(parse(Source(text, f"<einsum {subscripts!r}>")), {})


def _index(label: str) -> str:
    return f"{label.lower()}_capital" if label.isupper() else label


def _size(label: str) -> str:
    return f"{label}_CAPITAL" if label.isupper() else label.upper()


def _error(whole: Source, column: int, length: int, message: str, hint: str | None = None) -> EinsumSyntaxError:
    return EinsumSyntaxError(message, span=Span(whole, 1, column, 1, column + length), hint=hint)

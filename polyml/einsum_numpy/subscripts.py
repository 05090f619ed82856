"""numpy.einsum's subscripts: the label of each dimension of each operand and of the result.

What NumPy does: spaces are ignored; a letter twice in one operand takes its diagonal; without `->` the result has the letters that occur once, in
alphabetical order (capitals first), behind the dimensions of `...`; dimensions of `...` are aligned at the right.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Iterable, Sequence

from polyml.errors import ShapeError, SubscriptsSyntaxError
from polyml.records import dataclass
from polyml.shown import counted
from polyml.source import Source, Span

__all__ = ["Labels", "labels_of", "subscripts_of_sublists", "wrong_number", "wrong_rank"]

_ELLIPSIS = "..."
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@dataclass(frozen=True, slots=True)
class Labels:
    """A label per dimension: a letter, or "d0", "d1", ... for those under `...`, counted from the right."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


def labels_of(subscripts: str, ranks: Sequence[int]) -> Labels:
    """The labels of operands of these ranks and of the result.

    Raises:
        SubscriptsSyntaxError: the subscripts are not in NumPy's form.
        ShapeError: they do not fit the operands' number or ranks.
    """
    whole = Source(subscripts, "<einsum subscripts>")
    left, arrow, right = subscripts.partition("->")
    if "->" in right:
        raise _error(whole, subscripts.rindex("->"), 2, "the subscripts have more than one '->'")
    pieces = left.split(",")
    if len(pieces) != len(ranks):
        raise wrong_number(len(pieces), len(ranks), Span(whole, 1, 0, 1, max(1, len(left))))
    labels: list[tuple[str, ...]] = []
    offset = 0
    for position, (piece, rank) in enumerate(zip(pieces, ranks, strict=True)):
        labels.append(_operand_labels(piece, position, rank, offset, whole))
        offset += len(piece) + 1
    result = _result_labels(right, len(left) + len(arrow), labels, whole) if arrow else _implicit_result(labels)
    return Labels(tuple(labels), tuple(result))


def wrong_number(named: int, given: int, span: Span) -> ShapeError:
    """The error for subscripts of more or fewer operands than there are."""
    are = "is" if given == 1 else "are"
    return ShapeError(f"the subscripts name {counted(named, 'operand')}, but {given} {are} given", span=span)


def wrong_rank(position: int, rank: int, subscripts: str, span: Span, hint: str | None = None) -> ShapeError:
    """The error for another number of subscripts than the operand has dimensions."""
    message = f"operand {position} has {counted(rank, 'dimension')}, but {subscripts}"
    return ShapeError(message, span=span, hint=hint)


def subscripts_of_sublists(arguments: Sequence[object]) -> tuple[str, tuple[object, ...]]:
    """The subscripts and operands of numpy.einsum's other form: operand, sublist, operand, sublist, ... and perhaps the result's sublist.

    Raises:
        TypeError, ValueError: an entry of a sublist is no integer in 0..51 and not `...`, or a sublist cannot be iterated.
    """
    pairs = len(arguments) // 2
    operands = tuple(arguments[: 2 * pairs : 2])
    left = ",".join(_sublist(arguments[2 * k + 1]) for k in range(pairs))
    if len(arguments) % 2:
        return f"{left}->{_sublist(arguments[-1])}", operands
    return left, operands


def _sublist(sublist: object) -> str:
    if isinstance(sublist, str) or not isinstance(sublist, Iterable):
        raise TypeError(f"a sublist of subscripts is a list of integers and `...`, not {sublist!r}")
    letters = []
    for entry in sublist:
        if entry is Ellipsis:
            letters.append(_ELLIPSIS)
            continue
        if isinstance(entry, bool):  # an integer elsewhere in Python, refused by NumPy
            raise TypeError(f"a subscript is an integer or `...`, not {entry!r}")
        number = operator.index(entry)
        if not 0 <= number < len(_LETTERS):
            raise ValueError(f"subscript {number} is not within 0..{len(_LETTERS) - 1}")
        letters.append(_LETTERS[number])
    return "".join(letters)


def _operand_labels(piece: str, position: int, rank: int, offset: int, whole: Source) -> tuple[str, ...]:
    parts = _split(piece, offset, whole)
    letters = len(parts) - (_ELLIPSIS in parts)
    span = Span(whole, 1, offset, 1, offset + max(1, len(piece)))
    if _ELLIPSIS in parts:
        if letters > rank:
            raise wrong_rank(position, rank, f"at least {counted(letters, 'subscript')}", span)
        at = parts.index(_ELLIPSIS)
        hidden = [f"d{n}" for n in reversed(range(rank - letters))]
        return (*parts[:at], *hidden, *parts[at + 1 :])
    if letters != rank:
        raise wrong_rank(position, rank, counted(letters, "subscript"), span)
    return tuple(parts)


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
        if character in _LETTERS:
            parts.append(character)
        elif character != " ":
            hint = "subscripts are letters and `...`, operands are separated by commas: 'ik,kj->ij'"
            raise _error(whole, offset + position, 1, f"{character!r} is no subscript", hint)
        position += 1
    return parts


def _result_labels(right: str, offset: int, labels: list[tuple[str, ...]], whole: Source) -> list[str]:
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


def _implicit_result(labels: list[tuple[str, ...]]) -> list[str]:
    every = [label for operand in labels for label in operand]
    once = sorted(label for label in every if len(label) == 1 and every.count(label) == 1)
    return [*_hidden(labels), *once]


def _hidden(labels: list[tuple[str, ...]]) -> list[str]:
    """The labels of the dimensions under `...`, leftmost first."""
    count = max(sum(len(label) > 1 for label in operand) for operand in labels)
    return [f"d{n}" for n in reversed(range(count))]


def _error(whole: Source, column: int, length: int, message: str, hint: str | None = None) -> SubscriptsSyntaxError:
    return SubscriptsSyntaxError(message, span=Span(whole, 1, column, 1, column + length), hint=hint)

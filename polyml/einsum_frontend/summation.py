"""The summation convention: implied sums become explicit reducers.

For each additive term of the right side, and each index that the left side lacks and no reducer binds:

1. it is in two or more factors of the term's product: the product is summed over it;
2. it is in one factor, a plain access: summed if the term stands in the right side itself, refused if it stands deeper;
3. it is in one factor, a parenthesized sum or one argument of a function or reducer: the rules apply to the terms inside;
4. anything else is refused.

A product is what `*`, unary minus, and `/` by something that lacks the index join. Each term has its own sum, over the whole product with its
constant factors and divisors; all sums of one statement over one index use that index (it has one range). Choices where the language page is silent:
a sum is what `+` and `-` join, so `-(a + b)` is a product whose factor is a parenthesized sum; an index value by itself (`k`) is a factor, but no plain
access; a gather such as `table[ids[k], d]` is a plain access; a dtype call is a function (`i32(x[n, k])` is deeper, hence refused).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from polyml.einsum_frontend.printer import format_expression
from polyml.einsum_frontend.syntax import Binary, Call, Expression, IndexRef, Reducer, Subscript, Unary
from polyml.einsum_frontend.walk import children, index_names, map_children, walk
from polyml.errors import EinsumSyntaxError
from polyml.records import dataclass

__all__ = ["imply_sums", "summed_by_every_term"]


def imply_sums(value: Expression, missing: frozenset[str]) -> Expression:
    """`value` with each implied sum over indices of `missing` (those that the left side lacks) written as a Reducer.

    Raises:
        EinsumSyntaxError: the convention does not say what is summed; the hint shows the possible readings.
    """
    return _terms(value, missing, whole=None) if missing else value


def summed_by_every_term(value: Expression) -> frozenset[str]:
    """The indices that an implied sum at the very top of every additive term of `value` binds (`value` as `imply_sums` returned it)."""
    match value:
        case Binary(op="+" | "-"):
            return summed_by_every_term(value.left) & summed_by_every_term(value.right)
        case Reducer(implied=True):
            return frozenset(item.name for item in value.items if isinstance(item, IndexRef))
        case _:
            return frozenset()


def _terms(e: Expression, missing: frozenset[str], *, whole: Expression | None) -> Expression:
    """The rules, for each term that `+` and `-` join. `whole`: the term of the right side that `e` stands in; None when `e` is the right side itself."""
    match e:
        case Binary(op="+" | "-"):
            return map_children(e, lambda side: _terms(side, missing & index_names(side), whole=whole))
        case _:
            return _term(e, missing & index_names(e), whole=whole)


def _term(e: Expression, missing: frozenset[str], *, whole: Expression | None) -> Expression:
    if not missing:
        return e
    outermost = e if whole is None else whole
    product = _Product.of(e)
    summed: set[str] = set()
    inside: dict[int, set[str]] = {}  # which factor (by position) holds indices that rule 3 hands down
    for index in _in_reading_order(e, missing):
        if any(index in index_names(divisor) for divisor in product.divisors):
            raise _refusal(index, outermost, e, "it is in a divisor")
        holders = [n for n, factor in enumerate(product.factors) if index in index_names(factor)]
        factor = product.factors[holders[0]]
        if len(holders) >= 2:
            summed.add(index)
        elif isinstance(factor, Subscript):
            if whole is not None:
                reason = "it is in one factor only, and not at the top of the right side"
                raise _refusal(index, outermost, factor, reason)
            summed.add(index)
        elif _opens(factor, index):
            inside.setdefault(holders[0], set()).add(index)
        else:
            raise _refusal(index, outermost, factor, f"`{_what(factor)}` is no product")
    if inside:
        replaced = {id(product.factors[n]): frozenset(indices) for n, indices in inside.items()}
        e = _descend(e, replaced, outermost)
    if not summed:
        return e
    items = tuple(_first_reference(e, index) for index in _in_reading_order(e, frozenset(summed)))
    return Reducer("sum", items, e, e.span, implied=True)


@dataclass(frozen=True, slots=True)
class _Product:
    """The factors of a term in reading order, and what it is divided by."""

    factors: tuple[Expression, ...]
    divisors: tuple[Expression, ...]

    @staticmethod
    def of(e: Expression) -> _Product:
        match e:
            case Binary(op="*"):
                left, right = _Product.of(e.left), _Product.of(e.right)
                return _Product((*left.factors, *right.factors), (*left.divisors, *right.divisors))
            case Binary(op="/"):
                left = _Product.of(e.left)
                return _Product(left.factors, (*left.divisors, e.right))
            case Unary(op="-"):
                return _Product.of(e.operand)
            case _:
                return _Product((e,), ())


def _opens(factor: Expression, index: str) -> bool:
    """Rule 3: a parenthesized sum, or a function or reducer with `index` in one argument."""
    match factor:
        case Binary(op="+" | "-"):
            return True
        case Call():
            return sum(index in index_names(arg) for arg in factor.args) == 1
        case Reducer():
            return not any(index in index_names(item) for item in factor.items)
        case _:
            return False


def _descend(e: Expression, inside: dict[int, frozenset[str]], whole: Expression) -> Expression:
    """`e` with the rules applied inside the factors (named by identity) of its product; `whole` as in `_terms`."""
    if id(e) in inside:
        missing = inside[id(e)]
        match e:
            case Reducer():
                return replace(e, body=_terms(e.body, missing, whole=whole))
            case Call():
                return map_children(e, lambda arg: _terms(arg, missing & index_names(arg), whole=whole))
            case _:
                return _terms(e, missing, whole=whole)
    match e:
        case Binary(op="*"):
            return map_children(e, lambda side: _descend(side, inside, whole))
        case Binary(op="/"):
            left = _descend(e.left, inside, whole)
            return e if left is e.left else replace(e, left=left)
        case Unary(op="-"):
            return map_children(e, lambda operand: _descend(operand, inside, whole))
        case _:
            return e


def _in_reading_order(e: Expression, names: Iterable[str]) -> list[str]:
    wanted = frozenset(names)
    return list(dict.fromkeys(part.name for part in walk(e) if isinstance(part, IndexRef) and part.name in wanted))


def _first_reference(e: Expression, index: str) -> IndexRef:
    return next(part for part in walk(e) if isinstance(part, IndexRef) and part.name == index)


def _what(factor: Expression) -> str:
    text = format_expression(factor)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _refusal(index: str, term: Expression, fault: Expression, reason: str) -> EinsumSyntaxError:
    """The error at `fault`, with the possible readings: a sum around the least part that holds the index, around a power of it, around either side of a quotient, and around the whole term."""
    holders = _holders(term, index)
    least = holders[-1] if holders else term
    parts: list[tuple[Expression, ...]] = [(least,)]
    match holders[-2:]:
        case [Binary(op="**") as power, _]:
            parts.append((power,))
        case [*_, Binary(op="/") as quotient] if all(_reads(side) for side in children(quotient)):
            parts[0] = children(quotient)
    readings = list(dict.fromkeys(format_expression(_summed(term, each, index)) for each in (*parts, (term,))))
    return EinsumSyntaxError(
        f"it is not clear how {index!r}, which the left side lacks, is summed: {reason}",
        span=fault.span,
        hint=f"write the reducer: {' or '.join(readings)} (or another of prod, max, min, ...)",
    )


def _holders(e: Expression, index: str) -> list[Expression]:
    """The parts of `e` with all uses of `index` that read a tensor, from `e` itself to the least one; none where that is an index value."""
    found = [e]
    while not isinstance(e, (Subscript, Reducer)):
        holders = [child for child in children(e) if index in index_names(child)]
        if len(holders) != 1:
            break
        e = holders[0]
        found.append(e)
    return found if _reads(e) else []


def _reads(e: Expression) -> bool:
    return any(isinstance(part, Subscript) for part in walk(e))


def _summed(e: Expression, parts: Sequence[Expression], index: str) -> Expression:
    """`e` with a sum around each of the parts."""
    if any(e is part for part in parts):
        return Reducer("sum", (_first_reference(e, index),), e, e.span)
    return map_children(e, lambda child: _summed(child, parts, index))

"""Random calls in numpy.einsum's form, well-formed and not, and their comparison with NumPy."""

from __future__ import annotations

import random
import string
import warnings
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeVar

import numpy as np
from numpy import einsum as numpy_einsum  # this one, though it be replaced in numpy

from polyml.einsum_numpy.extended import is_extended
from polyml.records import dataclass
from polyml.testing.cases import LAYOUTS, Chooser, lay_out

__all__ = ["Call", "RandomChooser", "compare", "generate_call"]

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]

_COMPILED = ("f8", "f4", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "?", "c8", "c16")
_OTHER = (">f8", "<f4", ">i2", ">c8", "f2", "g", "O")
_NOISE = ".,->ij %1é\t\n\0A"


@dataclass(slots=True)
class RandomChooser:
    """A Chooser on Python's generator."""

    random: random.Random

    def pick(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def flag(self, percent: int) -> bool:
        return self.random.randrange(100) < percent


@dataclass(frozen=True)
class Call:
    """What to call: `function(*arguments, **keywords)`. arguments: subscripts and operands, or operands with sublists."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def fresh(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with `out` copied, so that it may be written; where it is an operand it stays that."""
        out = self.keywords.get("out")
        if not isinstance(out, np.ndarray) or not out.flags.writeable:
            return list(self.arguments), dict(self.keywords)
        copy = _copy(out)
        arguments = [copy if argument is out else argument for argument in self.arguments]
        return arguments, {**self.keywords, "out": copy}

    def __repr__(self) -> str:
        shown = [_shown(a) for a in self.arguments] + [f"{k}={_shown(v)}" for k, v in self.keywords.items()]
        return f"einsum({', '.join(shown)})"


def _copy(out: Array) -> Array:
    """The same elements with the same strides, and the same room between them."""
    reaches = [stride * max(extent - 1, 0) for stride, extent in zip(out.strides, out.shape, strict=True)]
    below = -sum(min(reach, 0) for reach in reaches)
    odd = 0 if out.flags.aligned else 1
    room = np.zeros(odd + below + sum(max(reach, 0) for reach in reaches) + out.itemsize, "u1")
    copy: Array = np.ndarray(out.shape, out.dtype, room[odd:].data, below, out.strides)
    copy[...] = out
    return copy


def _shown(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    flags = "" if value.flags.writeable else " read-only"
    return f"<{value.dtype.str} {value.shape} strides {value.strides}{flags}: {value.tolist()}>"


def generate_call(chooser: Chooser, *, malformed: int = 10, others: int = 15, large: bool = False) -> Call:
    """A call.

    Args:
        malformed: percent of calls that something is done to. others: percent of operands of element types that no kernel takes.
        large: some sizes reach whole vectors and their tails (f32 sums may round then).
    """
    letters = chooser.pick(("ijklm", "abIJz", "zyxwv"))
    extents = (17, 3, 8, 1, 19, 2, 9, 33, 16) if large else (3, 2, 4, 1, 5, 2, 3, 4, 0 if chooser.flag(20) else 3)
    sizes = {letter: chooser.pick(extents) for letter in letters}
    hidden = [chooser.pick((2, 3, 1)) for _ in range(2)]
    count = chooser.pick((1, 2, 2, 2, 3, 3, 4))
    dtype = chooser.pick(_COMPILED)
    terms: list[str] = []
    operands: list[Any] = []
    for _ in range(count):
        term, shape = _operand(chooser, letters, sizes, hidden)
        terms.append(term)
        own = dtype if chooser.flag(75) else chooser.pick(_COMPILED)
        operands.append(_array(chooser, shape, chooser.pick(_OTHER) if chooser.flag(others) else own))
    subscripts = ",".join(terms)
    if chooser.flag(70):
        subscripts += "->" + _result(chooser, terms)
    keywords = _keywords(chooser)
    if chooser.flag(25):
        keywords["out"] = _out(chooser, subscripts, operands, dtype)
    if chooser.flag(malformed):
        subscripts, operands = _harm(chooser, subscripts, operands)
    if chooser.flag(15) and (sublists := _sublists(subscripts, operands)) is not None:
        return Call(tuple(sublists), keywords)
    if chooser.flag(20):
        subscripts = subscripts.replace(",", " , ").replace("->", chooser.pick((" ->", "-> ", " -> ")))
    return Call((subscripts, *operands), keywords)


def _operand(chooser: Chooser, letters: str, sizes: dict[str, int], hidden: list[int]) -> tuple[str, tuple[int, ...]]:
    rank = chooser.pick((2, 1, 3, 2, 0, 3, 2))
    parts: list[str] = []
    for _ in range(rank):
        letter = chooser.pick(letters)
        if letter not in parts or chooser.flag(25):
            parts.append(letter)
    shape = [1 if parts.count(p) == 1 and chooser.flag(6) else sizes[p] for p in parts]
    if chooser.flag(20):
        at, depth = chooser.integer(0, len(parts)), chooser.integer(0, 2)
        parts.insert(at, "...")
        shape[at:at] = [1 if chooser.flag(15) else n for n in hidden[2 - depth :]]
    return "".join(parts), tuple(shape)


def _result(chooser: Chooser, terms: list[str]) -> str:
    letters = list(dict.fromkeys(c for term in terms for c in term if c.isalpha()))
    kept = [c for c in letters if chooser.flag(60)]
    kept.sort(key=lambda _: chooser.integer(0, 99))
    if any("..." in term for term in terms) or chooser.flag(4):
        kept.insert(chooser.integer(0, len(kept)), "...")
    return "".join(kept)


def _array(chooser: Chooser, shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(chooser.integer(0, 9999))
    kind = np.dtype(dtype).kind
    if kind in "fc":
        values = rng.choice([0.5, 1.0, -1.0, 2.0, 0.0, 1.5, -0.5, -2.0], size=shape)
    else:
        values = rng.integers(
            0 if kind in "ub" else -3, 2 if kind == "b" else 100 if chooser.flag(10) else 4, size=shape
        )
    array: Array = np.asarray(values).astype(dtype)
    style = chooser.pick(("plain", "layout", "layout", "plain", "odd"))
    if style == "layout" and shape and kind != "O":
        array = lay_out(array, chooser.pick(LAYOUTS)).astype(dtype, order="K", copy=False)
    elif style == "odd":
        match chooser.pick(("list", "read-only", "unaligned", "broadcast", "scalar", "subclass")):
            case "list" if 0 not in shape and kind in "fib":
                return array.tolist()
            case "read-only":
                array.flags.writeable = False
            case "unaligned" if kind != "O":
                room = np.zeros(array.nbytes + 1, "u1")[1:]
                moved: Array = np.ndarray(shape, array.dtype, room.data if room.size else None)
                moved[...] = array
                return moved
            case "broadcast" if shape and shape[0] > 1:
                return np.broadcast_to(array[:1], shape)
            case "scalar" if not shape:
                return array[()]
            case "subclass":
                return array.view(np.recarray) if chooser.flag(50) else array.view(_Sub)
            case _:
                pass
    return array


class _Sub(np.ndarray[Any, np.dtype[Any]]):
    """A subclass without rules of its own."""


def _keywords(chooser: Chooser) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if chooser.flag(12):
        keywords["dtype"] = chooser.pick(("f8", "f4", "i8", "i2", np.float32, "c16", "?", "O", "nonsense"))
    if chooser.flag(15):
        keywords["order"] = chooser.pick(("C", "F", "A", "K", "f", None, "W"))
    if chooser.flag(15):
        keywords["casting"] = chooser.pick(("unsafe", "same_kind", "safe", "equiv", "no", "blah"))
    if chooser.flag(12):
        keywords["optimize"] = chooser.pick((False, True, "greedy", "optimal"))
    return keywords


def _out(chooser: Chooser, subscripts: str, operands: list[Any], dtype: str) -> Any:
    if chooser.flag(6):
        return chooser.pick(([0.0], "text", 3))
    if chooser.flag(10):
        return chooser.pick(operands)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape = np.shape(numpy_einsum(subscripts, *(np.zeros(np.shape(o), "i1") for o in operands)))
    except (ValueError, TypeError):
        shape = (2,)
    if chooser.flag(8):
        shape = (*shape, 1)
    out = _array(chooser, shape, dtype if chooser.flag(70) else chooser.pick(_COMPILED))
    return out if isinstance(out, np.ndarray) else np.asarray(out)


def _harm(chooser: Chooser, subscripts: str, operands: list[Any]) -> tuple[str, list[Any]]:
    match chooser.pick(("insert", "delete", "insert", "drop", "add", "rank", "object")):
        case "insert":
            at = chooser.integer(0, len(subscripts))
            return subscripts[:at] + chooser.pick(_NOISE) + subscripts[at:], operands
        case "delete" if subscripts:
            at = chooser.integer(0, len(subscripts) - 1)
            return subscripts[:at] + subscripts[at + 1 :], operands
        case "drop":
            return subscripts, operands[1:]
        case "add":
            return subscripts, [*operands, np.ones(2)]
        case "rank":
            return subscripts, [np.ones((2,) * chooser.integer(0, 4)), *operands[1:]]
        case _:
            return subscripts, [chooser.pick((None, "text", object(), b"x", [[1], [1, 2]])), *operands[1:]]


def _sublists(subscripts: str, operands: list[Any]) -> list[Any] | None:
    """The same call in the other form; None where it cannot be said."""
    left, arrow, right = subscripts.partition("->")
    terms = left.split(",")
    table = string.ascii_uppercase + string.ascii_lowercase
    if len(terms) != len(operands) or any(c not in table for c in subscripts if c not in ",->."):
        return None

    def listed(term: str) -> list[Any]:
        return [Ellipsis if c == "." else table.index(c) for c in term.replace("...", ".") if c in table or c == "."]

    made = [item for term, operand in zip(terms, operands, strict=True) for item in (operand, listed(term))]
    return [*made, listed(right)] if arrow else made


def compare(call: Call, function: Callable[..., Any]) -> None:
    """Raises AssertionError unless `function` does with the call what numpy.einsum does.

    The class of the error, or: the kind, dtype, shape, strides and elements of the result, whether it is `out` or a view of an operand, and whether it may be written.

    A call with `optimize=` may also do what it does without: NumPy's steps have memory orders, subclasses, wrapping and faults of their own. A call without
    operands is not compared: it makes a callable.
    """
    if len(call.arguments) == 1:
        return
    try:
        _compare(call, function, call.keywords)
    except AssertionError:
        if not call.keywords.get("optimize"):
            raise
        _compare(call, function, {name: value for name, value in call.keywords.items() if name != "optimize"})


def _compare(call: Call, function: Callable[..., Any], numpy_keywords: dict[str, Any]) -> None:
    arguments, keywords = call.fresh()
    keywords = {name: keywords[name] for name in numpy_keywords}
    expected, error = _outcome(numpy_einsum, arguments, keywords)
    own_arguments, own_keywords = call.fresh()
    actual, own_error = _outcome(function, own_arguments, own_keywords)
    if error is not None:
        if own_error is None and isinstance(arguments[0], str) and is_extended(arguments[0]):
            return  # an affine subscript: more than NumPy takes
        assert own_error is not None, f"NumPy raises {error!r}"
        assert isinstance(own_error, type(error)), f"{own_error!r}, NumPy raises {error!r}"
        return
    if own_error is not None:
        raise AssertionError(f"{own_error!r}, NumPy computes it") from own_error
    assert type(actual) is type(expected), f"{type(actual)}, expected {type(expected)}"
    assert (actual is own_keywords.get("out")) == (expected is keywords.get("out")), "out or not"
    assert np.shape(actual) == np.shape(expected), f"shape {np.shape(actual)}, expected {np.shape(expected)}"
    if isinstance(expected, np.ndarray | np.generic):
        assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
        assert actual.flags.writeable == expected.flags.writeable, f"writeable: {actual.flags.writeable}"
        if expected.size:
            assert actual.strides == expected.strides, f"strides {actual.strides}, expected {expected.strides}"
        for mine, its in zip(own_arguments, arguments, strict=True):
            if isinstance(its, np.ndarray) and isinstance(mine, np.ndarray):
                assert np.may_share_memory(actual, mine) == np.may_share_memory(expected, its), "view or not"
    equal = np.array_equal(actual, expected) if _plain(expected) else bool(np.all(actual == expected))
    assert equal, f"{actual!r}, expected {expected!r}"


def _plain(value: Any) -> bool:
    return getattr(value, "dtype", np.dtype("O")).kind != "O"


def _outcome(
    function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]
) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's about casts
        warnings.filterwarnings("error", message="numpy.einsum computes")  # what polyml should have compiled
        try:
            return function(*arguments, **keywords), None
        except Exception as error:  # it is looked at
            return None, error

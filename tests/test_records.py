"""polyml.records.dataclass against the standard library's, class by class."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from polyml import records
from polyml.dtypes import f32
from polyml.expressions import Apply, Read, reads_of
from polyml.sets.affine import affine, weighted_sum

Decorator = Callable[..., Any]
CHOICES = [
    dict(zip(("frozen", "slots", "eq"), bits, strict=True)) for bits in itertools.product([True, False], repeat=3)
]


def classes(decorator: Decorator, **options: bool) -> tuple[Any, Any, Any, Any]:
    """The same four classes made by any decorator: plain, empty, with every kind of field, and derived from that."""
    made = decorator(**options)

    @made
    class Point:
        """A point."""

        x: int
        y: object = 2

    @made
    class Empty:
        pass

    @made
    class Full:
        a: int
        made: list[int] = field(default_factory=list)
        hidden: int = field(default=7, compare=False, repr=False)
        inner: list[int] = field(default_factory=lambda: [1], init=False)
        constant: int = field(default=3, init=False)
        text: str = field(init=False)
        last: int = field(default=5, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "text", f"<{self.a}>")

        def __str__(self) -> str:
            return self.text

    @decorator(**options, kw_only=True)
    class Derived(Full):
        b: int

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 11

    return Point, Empty, Full, Derived


def behaviour(decorator: Decorator, **options: bool) -> list[object]:
    """What can be seen of the classes."""
    point, empty, full, derived = classes(decorator, **options)
    seen: list[object] = []

    def see(action: Callable[[], object]) -> None:
        try:
            seen.append(action())
        except (TypeError, AttributeError, StopIteration) as reason:
            seen.append((type(reason), str(reason)))

    one = full(1, last=2)
    other = derived(1, b=4)
    for value in (point(1), point(1, y=(3,)), one, other, empty()):
        see(lambda value=value: repr(value).partition(" object at ")[0])  # type: ignore[misc]
        see(lambda value=value: str(value).partition(" object at ")[0])  # type: ignore[misc]
        see(lambda value=value: isinstance(hash(value), int))  # type: ignore[misc]
        see(lambda value=value: value == copy.copy(value))  # type: ignore[misc]
        see(lambda value=value: value == dataclasses.replace(value))  # type: ignore[misc]
        see(lambda value=value: setattr(value, next(iter(type(value).__match_args__)), 1))  # type: ignore[misc]
        see(lambda value=value: delattr(value, next(iter(type(value).__match_args__))))  # type: ignore[misc]
        seen += [hasattr(value, "__dict__"), type(value).__match_args__, str(inspect.signature(type(value)))]
        seen.append([f.name for f in dataclasses.fields(value)])
    see(lambda: point())
    see(lambda: point(1, 2, 3))
    see(lambda: full(1, [], 7, 5))
    see(lambda: hash(point(1)) == hash(point(1)))
    seen += [point(1) == point(1), point(1) == point(2), point(1) == full(1), point(1) == 1, empty() == empty()]
    seen += [full(1, hidden=8) == full(1), full(1).made is full(1).made, one.inner, one.last, other.b, other.last]
    match point(1, 8):
        case point(x, y):
            seen.append((x, y))
    return seen


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_same_as_the_standard_library(options: dict[str, bool]) -> None:
    assert behaviour(records.dataclass, **options) == behaviour(dataclasses.dataclass, **options)


@records.dataclass(frozen=True, slots=True)
class Stored:
    number: int
    parts: tuple[Stored, ...] = ()


def test_pickles() -> None:
    value = Stored(1, (Stored(2),))
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


def test_a_method_of_the_class_stays() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Odd:
        number: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    assert Odd(1) == Odd(2)
    assert hash(Odd(3)) == 5


@pytest.mark.parametrize("options", [{}, {"slots": True}, {"slots": True, "frozen": True}, {"slots": True, "frozen": True, "kw_only": True}])  # fmt: skip
def test_replaces(options: dict[str, bool]) -> None:
    @records.dataclass(**options)
    class Pair:
        one: int
        other: object = None
        more: list[int] = dataclasses.field(default_factory=list)

    made = Pair(one=1, other=(2,), more=[3])
    assert records.replace(made) == made
    assert records.replace(made) is not made
    assert records.replace(made, other=None) == Pair(one=1, other=None, more=[3])
    assert records.replace(made, one=2, more=[]) == dataclasses.replace(made, one=2, more=[])  # type: ignore[type-var]
    assert made == Pair(one=1, other=(2,), more=[3])
    with pytest.raises(TypeError):
        records.replace(made, another=1)


def test_replaces_what_its_class_makes_itself() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Text:
        number: int
        text: str = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "text", str(self.number))

    assert records.replace(Text(1), number=2).text == "2"


def test_kept_hashes_are_left_behind() -> None:
    value = Read("x", (affine("i") * 2 + 1, affine("j")), f32)
    again = pickle.loads(pickle.dumps(value))
    assert hash(value) == hash(again) == hash(records.replace(value))
    assert hash(records.replace(value, tensor="y")) == hash(Read("y", value.subscripts, f32))
    assert affine("i").variables() == {"i"}
    assert affine("i").substitute({"i": affine("j") // 2}).variables() == {"j"}
    assert records.replace(affine("i"), terms=()).variables() == frozenset()
    product = Apply("mul", (value, Read("y", (), f32)), f32)
    reads_of(product).clear()  # each caller has a list of its own
    assert reads_of(product) == [value, Read("y", (), f32)] == reads_of(pickle.loads(pickle.dumps(product)))
    assert reads_of(records.replace(product, args=product.args[:1])) == [value]


def test_weighted_sums() -> None:
    i, j = affine("i"), affine("j")
    parts = [(i + 3, 4), (j // 2 - i, 4), (j, 0), (j * 5 + 1, -1)]
    assert weighted_sum(parts) == sum((value * factor for value, factor in parts), affine(0))
    assert weighted_sum([]) == affine(0)

"""polyml's record classes behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from polyml import records

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False},
)


def point(decorate: Callable[..., Any], options: dict[str, bool]) -> Any:
    @decorate(**options)
    class Point:
        """A point."""

        x: int
        y: tuple[int, ...] = (1, 2)
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        hidden: float = dataclasses.field(default=0.5, repr=False)

        def __post_init__(self) -> None:
            assert self.x != 13

        @property
        def first(self) -> int:
            return self.y[0]

    return Point


def outcome(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS)
def test_same_as_the_standard_library(options: dict[str, bool]) -> None:
    results = []
    for decorate in (dataclasses.dataclass, records.dataclass):
        made = point(decorate, options)
        one, same = made(x=1, y=(3,)), made(x=1, y=(3,), tags=["t"])

        def assign(instance: object = one, name: str = "x") -> None:
            setattr(instance, name, 5)

        def remove(instance: object = one) -> None:
            delattr(instance, "x")

        results.append(
            [
                repr(one),
                one == same,
                one == made(x=2),
                one != (1, (3,)),
                options.get("eq") is False or outcome(lambda one=one: hash(one)),
                made.__match_args__,
                str(inspect.signature(made)).replace("'", "").count("="),
                outcome(lambda made=made: made(1, (2,))),
                outcome(lambda made=made: made(x=13)),
                outcome(lambda made=made: made(nothing=1)),
                repr(dataclasses.replace(one, y=(7,))),
                [f.name for f in dataclasses.fields(one)],
                dataclasses.asdict(one),
                repr(copy.copy(one)),
                repr(copy.deepcopy(same)),
                one.first,
                made.__doc__,
                made.__qualname__,
                outcome(assign),
                outcome(lambda assign=assign: assign(name="z")) is None,
                outcome(remove),
                repr(made(x=1)),
            ]
        )
    texts = [[str(value) for value in values] for values in results]
    assert texts[0] == texts[1]


@records.dataclass(frozen=True, slots=True)
class Kept:
    """At module level, for pickle."""

    a: int
    b: str = "b"


@records.dataclass(frozen=True)
class Base:
    """A record that others inherit from."""

    a: int
    count: ClassVar[int] = 3


@records.dataclass(frozen=True)
class Derived(Base):
    b: int = 2


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(Kept(1))) == Kept(1)


def test_the_unusual_is_left_to_the_standard_library() -> None:
    assert Derived(1) == Derived(1, 2)
    assert [f.name for f in dataclasses.fields(Derived)] == ["a", "b"]
    assert Base.count == 3


def test_defaults_are_made_anew() -> None:
    made = point(records.dataclass, {"slots": True})
    one, other = made(x=1), made(x=1)
    one.tags.append("t")
    assert other.tags == []


def test_match() -> None:
    match Kept(1, "c"):
        case Kept(a, b=b):
            assert (a, b) == (1, "c")

"""Vectors put apart and together again: each element once, where it belongs, by few shuffles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from polyml.codegen.llvm.ir import Builder, Type, Value
from polyml.codegen.llvm.memory.between import put_apart, put_between


class Shuffles:
    """A builder that computes: values are named by their lanes."""

    def __init__(self) -> None:
        self.count = 0

    def shuffle(self, a: Value, order: Iterable[int], b: Value | None = None) -> Value:
        self.count += 1
        lanes = [*lanes_of(a), *([] if b is None else lanes_of(b))]
        return vector([lanes[k] for k in order])


def vector(lanes: Iterable[int]) -> Value:
    names = list(map(str, lanes))
    return Value(Type("float", len(names)), " ".join(names))


def lanes_of(value: Value) -> list[int]:
    return list(map(int, value.text.split()))


@pytest.mark.parametrize("width", [2, 4, 8, 16, 64])
def test_apart_and_between(width: int) -> None:
    for count in range(1, 18):
        row = [vector(range(number * width, (number + 1) * width)) for number in range(count)]
        b = Shuffles()
        parts = put_apart(cast("Builder", b), row)
        assert [lanes_of(part) for part in parts] == [
            list(range(number, count * width, count)) for number in range(count)
        ]
        assert put_between(cast("Builder", b), parts) == row
        # For each vector log2(count) at most, rounded up, and one within it; either way.
        assert b.count <= 2 * count * ((count - 1).bit_length() + 1)

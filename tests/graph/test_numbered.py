"""What expressions are made of, and their numbers: one for all that are equal."""

from __future__ import annotations

from polyml.dtypes import f32, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Numbered, Read, has_index_values, ops_in
from polyml.sets.affine import affine

I = affine("i")


def read(name: str, *subscripts: object) -> Read:
    return Read(name, subscripts, f32)  # type: ignore[arg-type]  # affine forms, or expressions


def test_equal_expressions_have_one_number_whichever_objects_they_are() -> None:
    numbered = Numbered()
    first, second = (Apply("add", (read("x", I), read("x", I + 1)), f32) for _ in range(2))
    assert first is not second
    assert numbered(first) == numbered(second)
    assert numbered(read("x", I)) == numbered(first.args[0])


def test_others_have_other_numbers() -> None:
    numbered = Numbered()
    index = IndexValue(I, i64)
    expressions: list[Expr] = [
        read("x", I), read("x", I + 1), read("y", I), read("x"), read("x", I, I), read("x", index),
        read("x", Read("j", (I,), i64)), index, IndexValue(I + 1, i64), Const(1, f32), Const(1, i64), Const(2, f32),
        Apply("add", (read("x", I), read("y", I)), f32), Apply("add", (read("y", I), read("x", I)), f32),
        Apply("sub", (read("x", I), read("y", I)), f32), Apply("neg", (read("x", I),), f32),
        Apply("neg", (Apply("neg", (read("x", I),), f32),), f32),
    ]  # fmt: skip
    assert len({numbered(e) for e in expressions}) == len(expressions)


def test_a_tensor_may_be_called_like_an_operation() -> None:
    numbered = Numbered()
    index = Read("j", (I,), i64)
    assert numbered(Read("neg", (index,), f32)) != numbered(Apply("neg", (index,), f32))


def test_zeros_of_both_signs_differ_where_that_is_asked() -> None:
    zero, negative = Const(0.0, f32), Const(-0.0, f32)
    assert Numbered()(zero) == Numbered()(negative)
    numbered = Numbered(exactly=True)
    assert numbered(zero) != numbered(negative)
    assert numbered(zero) == numbered(Const(0.0, f32))
    both = [Apply("add", (read("x", I), value), f32) for value in (zero, negative)]
    assert numbered(both[0]) != numbered(both[1])


def test_what_an_expression_is_made_of() -> None:
    """Gathered subscripts included; asked of the whole first, or of a part."""
    index = IndexValue(I, i64)
    place = Apply("mul", (Read("j", (I,), i64), Const(2, i64)), i64)
    inner = Apply("exp", (Read("x", (place,), f32),), f32)
    outer = Apply("add", (inner, Apply("cast", (index,), f32)), f32)
    assert (ops_in(outer), has_index_values(outer)) == ({"add", "exp", "mul", "cast"}, True)
    assert (ops_in(inner), has_index_values(inner)) == ({"exp", "mul"}, False)
    assert has_index_values(Read("x", (index,), f32))
    assert not has_index_values(read("x", I))
    assert ops_in(read("x", I)) == ops_in(index) == set()

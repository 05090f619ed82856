"""Numbers of expressions: one for all that are equal."""

from __future__ import annotations

from polyml.dtypes import f32, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Numbered, Read
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

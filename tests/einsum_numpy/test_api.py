"""polyml.einsum in numpy.einsum's form: dispatch, paths, long sums, keywords."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.dtypes import f32, f64, i16
from polyml.einsum_numpy import calls
from polyml.einsum_numpy.contraction import Contraction, Term
from polyml.einsum_numpy.path import find_path
from polyml.einsum_numpy.program import program_text
from polyml.options import overridden


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


def test_arrays_of_a_known_layout_go_straight_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random(4, 5), random(5, 6)
    expected = polyml.einsum("pq,qr->pr", a, b)
    form = calls.FORMS["pq,qr->pr"]
    assert len(form.kernels) == 1
    monkeypatch.setattr(calls, "_key", lambda *_: pytest.fail("the slow way"))
    assert np.array_equal(polyml.einsum("pq,qr->pr", a + 0, b + 0), expected)
    out = np.empty((4, 6))
    assert form.call(a, b, out=out) is out
    assert np.array_equal(out, expected)


def test_the_chain_holds_the_kernels_that_are_called_often() -> None:
    shapes = range(2, 9)
    for n in shapes:
        polyml.einsum("uv,v->u", random(n, n), random(n))
    form = calls.FORMS["uv,v->u"]
    assert len(form.kernels) == len(shapes)
    assert len(form._front[False]) == calls.FRONT
    last = form.kernels[-1]
    assert last not in form._front[False]
    for _ in range(calls.HITS):
        polyml.einsum("uv,v->u", random(8, 8), random(8))
    assert form._front[False][0] is last


def test_results_after_calls_with_out() -> None:
    """What `out` decides about type and memory order is not handed on to calls without it."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (3, 4, 3, 2)).astype("u2"), rng.integers(0, 4, (2, 2, 4)).astype("u2")
    text = "aJbz,zzJ->Jzba"
    expected = np.einsum(text, x, y)
    assert not expected.flags.c_contiguous
    for out in (np.empty((4, 2, 3, 3), "u2"), np.empty((4, 2, 3, 3), "f8"), np.empty((4, 2, 3, 3), "f8", order="F")):
        for _ in range(2):
            assert polyml.einsum(text, x, y, out=out) is out
            np.testing.assert_array_equal(out, expected)
            made = polyml.einsum(text, x, y)
            assert (made.dtype, made.strides) == (expected.dtype, expected.strides)
            np.testing.assert_array_equal(made, expected)


def test_a_form_that_has_seen_many_layouts_leaves_rare_small_calls_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MANY", 2)
    monkeypatch.setattr(calls, "SMALL", 100)
    for n in range(2, 6):
        assert np.allclose(polyml.einsum("g,gh->h", np.ones(n), np.ones((n, 2))), n)
    form = calls.FORMS["g,gh->h"]
    assert len(form.kernels) == 2
    for _ in range(calls.AGAIN):
        polyml.einsum("g,gh->h", np.ones(5), np.ones((5, 2)))
    assert len(form.kernels) == 3
    polyml.einsum("g,gh->h", np.ones(9), np.ones((9, 9)))  # large: compiled at once
    assert len(form.kernels) == 4


def test_views_share_memory_and_are_writeable() -> None:
    a = np.zeros((3, 3))
    polyml.einsum("ii->i", a)[:] = 1
    assert np.array_equal(a, np.eye(3))


def test_small_integers_wrap_as_in_numpy() -> None:
    a = np.full((7, 3), 100, np.int8)
    assert np.array_equal(polyml.einsum("ij,ij->j", a, a), np.einsum("ij,ij->j", a, a))


def test_an_operand_may_be_the_output() -> None:
    a = random(5, 5)
    expected = a @ a
    assert polyml.einsum("ij,jk->ik", a, a, out=a) is a
    assert np.allclose(a, expected)
    line = random(9)
    expected = line[1:] * 3.0  # computed before any of it is written
    assert np.array_equal(polyml.einsum("i,->i", line[1:], 3.0, out=line[:-1]), expected)


def test_chains_of_operands_follow_a_path() -> None:
    sizes = {"i": 100, "j": 2, "k": 100, "l": 2}
    assert find_path([("i", "j"), ("j", "k"), ("k", "l")], ("i", "l"), sizes) == ((1, 2), (0, 1))
    assert find_path([("i",), ("i", "j"), ("i", "j")], ("i", "j"), sizes) == ((0, 1, 2),)
    operands = [random(*shape) for shape in ((10, 8), (8, 9), (9, 7), (7, 3))]
    text = "ij,jk,kl,lm->im"
    expected = np.linalg.multi_dot(operands)
    for optimize in (True, False, "greedy", "optimal", ["einsum_path", (0, 1), (0, 2), (0, 1)], ("greedy", 50)):
        assert np.allclose(polyml.einsum(text, *operands, optimize=optimize), expected)
    with pytest.raises(RuntimeError, match="more operands"):
        polyml.einsum(text, *operands, optimize=["einsum_path", (0, 1)])
    with pytest.raises(TypeError):
        polyml.einsum(text, *operands, optimize=7)


@pytest.mark.parametrize("count", [9, 16])
@pytest.mark.few(1)
def test_many_operands_and_many_labels(count: int) -> None:
    letters = "abcdefghijklmnopqrst"
    operands = [random(3, 3) for _ in range(count)]
    text = ",".join(letters[k : k + 2] for k in range(count))
    assert np.allclose(polyml.einsum(text, *operands), np.linalg.multi_dot(operands))
    x = random(*(2,) * 10)
    assert np.allclose(polyml.einsum("abcdefghij->acegi", x), x.sum(axis=(1, 3, 5, 7, 9)))


def test_what_cannot_be_compiled_is_numpys_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise polyml.PolymlError("no")

    monkeypatch.setattr(calls, "compile_planned", refuse)
    operands = [random(3, 3) for _ in range(14)]  # in one loop nest NumPy would take hours
    text = ",".join("ABCDEFGHIJKLMNO"[k : k + 2] for k in range(14))
    with pytest.warns(RuntimeWarning, match="cannot be compiled: no"):
        assert np.allclose(polyml.einsum(text, *operands), np.linalg.multi_dot(operands))
    assert np.allclose(polyml.einsum(text, *operands), np.linalg.multi_dot(operands))


def test_the_path_becomes_one_program() -> None:
    given = Contraction(
        (Term(f32, {"i": 3, "j": 1}), Term(f64, {"j": 5, "k": 1}), Term(f64, {"k": 1, "l": 5})),
        {"i": 4, "j": 3, "k": 5, "l": 2},
        ("i",),
        f64,
    )
    assert program_text(given, ((1, 2), (0, 1))) == (
        'def einsum(x0: f32["4, 3"], x1: f64["3, 5"], x2: f64["5, 2"]):\n'
        "    s2[n2] = sum[n3](x2[n2, n3])\n"
        "    t0[n1] = sum[n2](x1[n1, n2] * s2[n2])\n"
        "    out[n0] = sum[n1](f64(x0[n0, n1]) * t0[n1])\n"
        "    return out\n"
    )
    narrow = Contraction((Term(i16, {"i": 1}), Term(i16, {})), {"i": 4}, (), i16)
    assert "out = i16(sum[n0](i32(x0[n0])) " not in program_text(narrow, ((0, 1),))
    assert "s0 = i16(sum[n0](i32(x0[n0])))" in program_text(narrow, ((0, 1),))


@pytest.mark.parametrize("n", [16384, 20480, 100003])
def test_long_sums_are_accurate(n: int) -> None:
    x = np.random.default_rng(1).random(n, dtype=np.float32)
    exact = float(np.sum(x, dtype=np.float64))
    assert abs(float(polyml.einsum("i->", x)) - exact) <= 2e-7 * exact
    assert abs(float(polyml.einsum("i,->", x[::-1], 2.0)) - 2 * exact) <= 1e-12 * exact


def test_without_operands_it_is_a_callable() -> None:
    f = polyml.einsum("ij,jk", optimize=True)
    assert np.allclose(f(np.eye(2), np.eye(2)), np.eye(2))
    for malformed, message in (
        ("", "einstein"),
        ("ij->k", r"the result has 'k', which no operand has\n"),
        (
            "i;j",
            r"(?s)';'.*\n    i;j\n     \^\nhint: subscripts are as in 'ij,jk->ik', and a program is the text of a function",
        ),
        ("lambda x: x", r"hint: subscripts are as in 'ij,jk->ik'"),
    ):
        with pytest.raises(ValueError, match=message):
            polyml.einsum(malformed)
    with pytest.raises(SyntaxError, match="the text is not a function"):
        polyml.einsum("y[n] = 2 * x[n]")
    with pytest.raises(ValueError, match="'j' has size 4 in operand 1, and 5 in operand 2"):
        polyml.einsum("ij,ij,jk->ik", np.ones((3, 1)), np.ones((3, 4)), np.ones((5, 2)))


def test_options_of_a_block_hold_in_it_and_nowhere_else() -> None:
    a, b = np.array([[1e8, 1, -1e8, 1] * 64], np.float32), np.ones((256, 1), np.float32)
    for subscripts in ("pq,qr->pr", "p q, q+0 r -> p r"):
        fast = polyml.einsum(subscripts, a, b)
        assert fast != 1
        with overridden(precise=True):
            assert polyml.einsum(subscripts, a, b) == 1
        assert polyml.einsum(subscripts, a, b) == fast


def test_keywords() -> None:
    a = random(3, 4)
    assert np.allclose(polyml.einsum("ij->j", a, threads=1, precise=True, order="F"), a.sum(axis=0))
    with pytest.raises(TypeError, match="no keyword thread\nhint: did you mean 'threads'"):
        polyml.einsum("ij->j", a, thread=1)
    with pytest.raises(
        TypeError, match=r"no keyword axis\nhint: keywords: casting, dtype, .*, semiring, where, target, threads"
    ):
        polyml.einsum("ij->j", a, axis=1)
    with pytest.raises(polyml.PolymlError, match="threads"):
        polyml.einsum("ij->j", a, threads=-1)
    with pytest.raises(TypeError):
        polyml.einsum(None, None)
    with pytest.raises(ValueError, match="operand"):
        polyml.einsum(optimize=True)


def test_spaces_may_look_like_a_definition() -> None:
    assert np.array_equal(polyml.einsum("def -> d", np.ones((2, 3, 4))), [12, 12])


def test_a_class_with_a_protocol_of_its_own_is_asked() -> None:
    class Own:
        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> str:
            return f"{function.__name__} {args[0]}"

    assert polyml.einsum("ij,jk", Own(), random(2, 2)) == "einsum ij,jk"


def test_path_is_numpys() -> None:
    operands = [np.ones(shape) for shape in ((10, 8), (8, 9), (9, 7))]
    assert polyml.einsum_path("ij,jk,kl", *operands) == np.einsum_path("ij,jk,kl", *operands)

"""Contractions of any size with a version for sizes near those of the first call: what that asks for, and the right result on both sides of it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import and_, eq, ge, le, mod, mul

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, For, If, Prefetch
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.lowered import Lowered
from polyml.schedule.large_enough import known_context
from polyml.schedule.schedule import Product
from polyml.sets.affine import affine
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=8 << 10, l2_bytes=16 << 10)
"""This machine, with caches that small tests outgrow."""

ORDERED = (("bgd", "cag", "dcba"), ("agd", "cbg", "dcba"), ("bea", "ec", "abc"), ("aeb", "ce", "bca"))
"""Two operands and a result whose reductions, g or e, are short here."""

AT_HAND = {"a": 32, "b": 14, "c": 12, "d": 9, "e": 20, "g": 16}
"""The first call's sizes."""


OPERATIONS = {"and": and_, "ge": ge, "le": le, "eq": eq, "mul": mul, "mod": mod}


def program(operands: Sequence[str], out: str, dtype: str = "f32") -> str:
    arguments = ", ".join(f'x{k}: {dtype}["{" ".join(o.upper())}"]' for k, o in enumerate(operands))
    product = " * ".join(f"x{k}[{', '.join(o)}]" for k, o in enumerate(operands))
    return f"def f({arguments}):\n    y[{', '.join(out)}] = {product}\n    return y\n"


def names(*operands: str) -> tuple[str, ...]:
    """All sizes: what is named stays symbolic where rows are short, too."""
    return tuple(sorted({index.upper() for operand in operands for index in operand}))


def arguments(operands: Sequence[str], sizes: dict[str, int], kind: str) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    return [rng.integers(-4, 5, [sizes[i] for i in o]).astype(kind) for o in operands]


def versions(lowered: Lowered) -> list[If]:
    """The choices between versions, outermost first."""
    found, nodes = list[If](), lowered.stages.regions[-1].loops.body
    while len(nodes) == 1 and isinstance(nodes[0], If):
        found.append(nodes[0])
        nodes = nodes[0].otherwise
    return found


def holds(condition: Expr, sizes: dict[str, int]) -> bool:
    """Whether a call of these sizes takes the version."""
    numbers = {index.upper(): n for index, n in sizes.items()}

    def value(e: Expr) -> int:
        match e:
            case Const():
                return int(e.value)
            case IndexValue():
                return e.affine.evaluate(numbers)
            case Apply():
                return int(OPERATIONS[e.op](*map(value, e.args)))
        raise AssertionError(e)

    return bool(value(condition))


def calls() -> list[dict[str, int]]:
    """Near the first call's sizes, with tiles that are whole and not, far away from them, and nothing at all."""
    some = [AT_HAND, {**AT_HAND, "c": 13}, {**AT_HAND, "a": 64, "b": 28, "c": 24}, {**AT_HAND, "a": 16, "b": 7, "d": 8}]
    some += [{**AT_HAND, "d": 10, "e": 19, "g": 17}, {**AT_HAND, "g": 33, "e": 41}, {**AT_HAND, "a": 33, "b": 15}]
    some += [{**AT_HAND, i: n} for i in AT_HAND for n in (0, 1)]
    return [*some, dict.fromkeys(AT_HAND, 1), dict.fromkeys(AT_HAND, 5), {**AT_HAND, "d": 70, "g": 3, "e": 2}]


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [pytest.param(*names, marks=[pytest.mark.slow] if k != 2 else []) for k, names in enumerate(ORDERED)],
)
def test_results_near_the_first_call_and_far_from_it(left: str, right: str, out: str) -> None:
    f = polyml.einsum(
        program((left, right), out), dynamic=names(left, right), target=SMALL_CACHES, threads=1, verify=True
    )
    for sizes in calls():
        x, y = arguments((left, right), sizes, "f4")
        np.testing.assert_array_equal(f(x, y), np.einsum(f"{left},{right}->{out}", x, y), str(sizes))
    # One for all sizes; what is empty has kernels of its own.
    assert len(f.kernels) == 1 + len({*left, *right})


def test_doubles_in_two_threads() -> None:
    operands, out = ("bgd", "cag"), "dcba"
    f = polyml.einsum(program(operands, out, "f64"), dynamic=names(*operands), target=SMALL_CACHES, threads=2)
    for sizes in calls():
        given = arguments(operands, sizes, "f8")
        np.testing.assert_array_equal(f(*given), np.einsum(f"{','.join(operands)}->{out}", *given), str(sizes))


def test_tiles_follow_the_order_of_the_result() -> None:
    """The reduction is one block, and no loop runs over what whole tiles leave."""
    operands = ("bgd", "cag")
    target = Target("x86-64-v4", l1_bytes=8 << 10, l2_bytes=16 << 10)
    lowered = polyml.einsum(program(operands, "dcba"), dynamic=names(*operands), target=target, threads=1).lower(
        *arguments(operands, AT_HAND, "f4")
    )
    assert "for sizes near those at hand" in lowered.explain()
    assert "tiles in the order of the result" in lowered.explain()
    near = versions(lowered)[0]
    assert holds(near.condition, AT_HAND)
    assert holds(near.condition, {**AT_HAND, "d": 10, "g": 17})
    for far in ({"a": 33}, {"b": 15}, {"g": 15}, {"g": 64}, {"d": 1}):
        assert not holds(near.condition, {**AT_HAND, **far}), far
    loops = [node for node in walk_nodes(near.then) if isinstance(node, For)]
    assert not any(node.masked for node in loops if "b" not in node.variable)
    assert not any(node.variable == "g_tile" and node.step > 8 for node in loops)


def test_large_first_calls_have_no_such_version() -> None:
    """Long reductions run in blocks, whatever the numbers."""
    operands = ("ik", "kj")
    x, y = np.ones((40, 700), "f4"), np.ones((700, 90), "f4")
    lowered = polyml.einsum(program(operands, "ij"), dynamic=True, target=SMALL_CACHES, threads=1).lower(x, y)
    assert "at hand" not in lowered.explain()


@pytest.mark.slow
def test_strips_where_l2_holds_the_operand() -> None:
    caches = Target("host", vector_bytes=32, vector_registers=16, l1_bytes=32 << 10, l2_bytes=256 << 10)
    operands, out = ("ke", "aki"), "aei"
    f = polyml.einsum(program(operands, out), dynamic=True, target=caches, threads=1, verify=True)
    first = {"k": 30, "e": 40, "a": 8, "i": 100}
    lowered = f.lower(*arguments(operands, first, "f4"))
    assert "in strips of" in lowered.explain()
    changes = ({}, {"e": 41}, {"i": 47}, {"i": 144}, {"e": 80}, {"k": 16}, {"k": 0}, {"e": 0}, {"a": 0}, {"a": 90})
    for change in (*changes, {"i": 1}, {"e": 1}, {"k": 300}, dict.fromkeys(first, 3)):
        sizes = {**first, **change}
        given = arguments(operands, sizes, "f4")
        np.testing.assert_array_equal(f(*given), np.einsum(f"{','.join(operands)}->{out}", *given), str(sizes))
    assert len(f.kernels) == 4


def test_strips_of_an_operand_beyond_l2() -> None:
    """Tiles ask for the next strip's lines, and the result goes past the caches: what sizes must be for both is asked for."""
    caches = Target("host", vector_bytes=32, vector_registers=16, l1_bytes=32 << 10, l2_bytes=256 << 10)
    f = polyml.einsum(program(("ke", "ki"), "ei"), dynamic=True, target=caches, threads=1, verify=True)
    first = {"k": 30, "e": 40, "i": 3008}
    lowered = f.lower(*arguments(("ke", "ki"), first, "f4"))
    assert "in strips of" in lowered.explain()
    near = versions(lowered)[0]
    asked = {node.place.variable for node in walk_nodes(near.then) if isinstance(node, Prefetch)}
    assert "x1" in asked
    assert any(isinstance(node, Assign) and node.streaming for node in walk_nodes(near.then))
    assert holds(near.condition, first)
    for far in ({"e": 16}, {"i": 1600}, {"i": 3007}):
        assert not holds(near.condition, {**first, **far}), far
    for change in ({}, {"i": 3007}, {"i": 4800}, {"e": 80}, {"e": 16}, {"k": 17}, {"k": 0}, {"i": 0}, {"i": 50}):
        sizes = {**first, **change}
        given = arguments(("ke", "ki"), sizes, "f4")
        np.testing.assert_array_equal(f(*given), np.einsum("ke,ki->ei", *given), str(sizes))


def test_multiples_are_known_where_a_version_asks_for_them() -> None:
    lowered = polyml.einsum('def f(x: f32["N"]):\n    y[i] = 2 * x[i]\n    return y\n', dynamic=True).lower(
        np.ones(9, "f4")
    )
    context = known_context(lowered.stages.regions[0].scop, (Product((affine("N"),), 16, 64, multiple=16),))
    assert context.is_equal(isl.Set("[N] -> { : N mod 16 = 0 and 16 <= N <= 64 }"))


def test_quotients_without_remainder_are_no_quotients() -> None:
    size = affine("N")
    known = Ranges(multiples=(("N", 16),))
    assert known.multiple(size * 3 + 8) == 8
    assert known.simplify(size // 8 * 8 - 1) == size - 1
    assert known.simplify(size // 32 * 32) == size // 32 * 32
    assert Ranges().simplify(size // 16 * 16) == size // 16 * 16


def test_lanes_of_a_vector_have_remainders() -> None:
    size, i = affine("N"), affine("i")
    known = Ranges(multiples=(("N", 2),))
    lanes = known.enter(For(variable="i", lower=affine(0), upper=size, step=8, kind="vector", width=8, body=()))
    steps = known.enter(For(variable="i", lower=affine(0), upper=size, step=8, body=()))
    assert steps.simplify(i // 2 * 2) == i
    assert lanes.simplify(i // 2 * 2) == i // 2 * 2
    assert lanes.simplify((i + size) // 2 * 2) == (i + size) // 2 * 2


def test_pairs_of_a_row_of_any_even_length() -> None:
    """A rotation of pairs of neighbours, whose angle is that of the pair: that the row is even is what the accesses ask for."""
    f = polyml.einsum(
        """
def rotate(x: f64["B T D"], base: f64):
    y: f64["B T D"]
    c: f64["T D"]
    s: f64["T D"]
    c[t, i] = cos(t * base ** (-2 * (i // 2) / D))
    s[t, i] = sin(t * base ** (-2 * (i // 2) / D))
    if i % 2 == 0:
        y[b, t, i] = x[b, t, i] * c[t, i] - x[b, t, i + 1] * s[t, i]
    else:
        y[b, t, i] = x[b, t, i] * c[t, i] + x[b, t, i - 1] * s[t, i]
    return y
""",
        dynamic=True,
    )
    for shape in ((2, 7, 10), (1, 3, 16), (3, 1, 22)):
        x = np.random.default_rng(0).standard_normal(shape)
        angles = np.arange(shape[1])[:, None] * 100.0 ** (-2 * np.arange(shape[2] // 2) / shape[2])
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        expected = np.stack([turned.real, turned.imag], axis=-1).reshape(shape)
        np.testing.assert_allclose(f(x, 100.0), expected, atol=1e-12)


def test_register_tiles_that_leave_no_rows_in_the_call_at_hand() -> None:
    """Ten rows by two vectors for 50 by 80, not nine by three, which would take a cycle less where numbers are known; 49 = 7 * 7."""
    target = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20, cores=1)
    for rows, tile in ((50, "10 e x 2"), (49, "7 e x 3")):
        given = arguments(("kbc", "ke"), {"k": 60, "b": 40, "c": 80, "e": rows}, "f4")
        f = polyml.einsum(program(("kbc", "ke"), "bec"), dynamic=True, target=target, threads=1)
        assert f"for sizes near those at hand: register tile {tile}" in f.lower(*given).explain()

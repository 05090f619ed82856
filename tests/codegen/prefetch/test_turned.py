"""Results that are laid out when their sums are finished: each of their lines is asked for ahead of that, to write, at an even rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import prod

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Prefetch
from polyml.codegen.rewrite import walk_nodes
from polyml.compiler.constants import lower_bound
from polyml.sets.affine import Affine
from polyml.target import Target

LAYER = """def f(x: f32["C H W"], w: f32["O C {size} {size}"]):
    y[o, p, q] = pad(x, ((0, 0), ({pad}, {pad}), ({pad}, {pad})))[c, {stride}*p + r, {stride}*q + s] * w[o, c, r, s]
    return y
"""
POINTS = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
FOLLOWED = """def f(x: f32["C H W"], w: f32["O C 3 3"], b: f32["O"]):
    t[o, p, q] = x[c, p + r, q + s] * w[o, c, r, s]
    y[o, p, q] = max(t[o, p, q] + b[o], 0)
    return y
"""


def layer(size: int, stride: int = 1) -> str:
    return LAYER.format(size=size, pad=size // 2, stride=stride)


def lowered(text: str, shapes: Mapping[str, tuple[int, ...]], l2_bytes: int, machine: str = "x86-64-v4") -> Function:
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    target = Target(machine, l1_bytes=48 * 1024, l2_bytes=l2_bytes, cores=1)
    program = polyml.einsum(text, target=target, threads=1)
    code = lower_bound(program.program, program.key_of(*values.values()), program.options, {"w"})
    return code.calls[2][-1]


Event = tuple[str, int]
"""What happens to which element of the result: "ask" or "store", or a step of sums: "add"."""


def events(nodes: tuple[Node, ...], values: Mapping[str, int], shape: tuple[int, ...]) -> Iterator[Event]:
    def flat(subscripts: tuple[object, ...]) -> int:
        at = [s.evaluate(values) for s in subscripts if isinstance(s, Affine)]
        return sum(place * prod(shape[k + 1 :]) for k, place in enumerate(at))

    for node in nodes:
        match node:
            case For():
                sums = any(isinstance(n, Assign) and n.reduction is not None for n in walk_nodes(node.body))
                inner = not any(isinstance(n, For) for n in walk_nodes(node.body))
                body = tuple(n for n in node.body if isinstance(n, Prefetch)) if sums and inner else node.body
                # Lanes are elements of their own where they are stored.
                step = 1 if node.kind == "vector" and not sums else node.step
                for value in range(node.lower.evaluate(values), node.upper.evaluate(values), step):
                    yield from events(body, {**values, node.variable: value}, shape)
                    if sums and inner:
                        yield "add", 0
            case Prefetch() if node.write:
                assert node.place.variable == "y"
                yield "ask", flat(node.place.subscripts)
            case Assign() if node.target.variable == "y":
                yield "store", flat(node.target.subscripts)
            case Allocate() | Block():
                yield from events(node.body, values, shape)
            case If():
                holds = eval(str(node.condition), {}, dict(values))
                yield from events(node.then if holds else node.otherwise, values, shape)
            case _:
                pass


@pytest.mark.parametrize(
    ("text", "shapes", "l2_bytes"),
    [
        (POINTS, {"x": (512, 14, 14), "w": (128, 512)}, 2**20),  # a line of each row ahead of the sums
        (POINTS, {"x": (256, 9, 9), "w": (100, 256)}, 2**18),
        (layer(3), {"x": (64, 32, 32), "w": (64, 64, 3, 3)}, 2**19),  # several lines of each row, from inside them
        (layer(7, 2), {"x": (3, 96, 96), "w": (64, 3, 7, 7)}, 2**18),
        (layer(3), {"x": (64, 14, 14), "w": (64, 64, 3, 3)}, 2**18),  # blocks of the sum, and then whole planes
        (FOLLOWED, {"x": (64, 16, 16), "w": (64, 64, 3, 3), "b": (64,)}, 2**18),
    ],
)
@pytest.mark.few(1)
def test_every_line_is_asked_for(text: str, shapes: Mapping[str, tuple[int, ...]], l2_bytes: int) -> None:
    check_lines(lowered(text, shapes, l2_bytes))


def check_lines(function: Function) -> None:
    (y,) = (v for v in function.arguments if v.name in function.written)
    shape = tuple(extent.constant for extent in y.shape)
    found = list(events(function.body, {}, shape))
    asked: set[int] = set()
    late = 0
    for what, at in found:
        if what == "ask":
            asked.add(at // 16)
        elif what == "store" and at // 16 not in asked:
            late += 1
            asked.add(at // 16)
    assert {at // 16 for what, at in found if what == "store"} == set(range(-(-prod(shape) // 16)))
    # The beginning of a row whose end alone is asked for may lie in a line of its own; points at the edge of a padded image have fewer terms that ask.
    assert late <= 3 * shape[0]
    assert max(len(list(group)) for what, group in groupby(what for what, _ in found) if what == "ask") <= 64
    requests = len(list(groupby(at // 16 for what, at in found if what == "ask")))
    assert requests <= 3 * prod(shape[:-1]) * -(-shape[-1] // 16)


def test_what_is_added_is_asked_for() -> None:
    text = FOLLOWED.replace("b[o], 0", "b[o] + z[o, p, q], 0").replace(
        ', b: f32["O"]', ', b: f32["O"], z: f32["O P Q"]'
    )
    shapes = {"x": (64, 16, 16), "w": (64, 64, 3, 3), "b": (64,), "z": (64, 14, 14)}
    found = [n for n in walk_nodes(lowered(text, shapes, 2**18).body) if isinstance(n, Prefetch) and n.level != 2]
    assert {(n.place.variable, n.write) for n in found} == {("y", True), ("z", False)}


def test_small_results_are_there() -> None:
    function = lowered(POINTS, {"x": (256, 14, 14), "w": (64, 256)}, 2**20)
    assert not any(isinstance(node, Prefetch) and node.write for node in walk_nodes(function.body))


def test_short_sums_ask_for_rows_as_a_whole() -> None:
    function = lowered(layer(7, 2), {"x": (3, 224, 224), "w": (64, 3, 7, 7)}, 2**19, "x86-64-v3")
    places = [n.place.subscripts for n in walk_nodes(function.body) if isinstance(n, Prefetch) and n.write]
    # One set of requests, in the tiles, none beside what is left of a row; no quotient says where a line is.
    assert [str(at[-1]) for at in places] == ["15", "31", "47", "63", "79", "95", "111"]
    assert len({str(at[0]) for at in places}) == 1
    check_lines(lowered(layer(7, 2), {"x": (3, 64, 64), "w": (64, 3, 7, 7)}, 2**17, "x86-64-v3"))


def test_rows_are_not_asked_for_again_and_again() -> None:
    function = lowered(layer(3), {"x": (64, 56, 56), "w": (64, 64, 3, 3)}, 2**20)
    places = [n.place.subscripts for n in walk_nodes(function.body) if isinstance(n, Prefetch) and n.write]
    # 64 terms ask for a line each, where 64 would ask for 8 rows.
    assert len(places) == 1

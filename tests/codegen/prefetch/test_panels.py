"""Panels of bound weights: while one block is multiplied with, every line of the next one is asked for, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import prod

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Block, For, Function, If, Node, Prefetch
from polyml.compiler.constants import lower_bound
from polyml.target import Target

WINDOWS = """def f(x: f32["C H W"], w: f32["O C R S"]):
    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]
    return y
"""
PRODUCT = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'


def asked(nodes: tuple[Node, ...], values: Mapping[str, int], blocks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The places that are fetched in the second iteration of each of the outermost `blocks` loops, in order."""
    for node in nodes:
        match node:
            case For():
                lower, upper = node.lower.evaluate(values), node.upper.evaluate(values)
                steps = range(lower, upper, node.step)
                for value in steps if len(values) >= blocks else steps[1:2]:
                    yield from asked(node.body, {**values, node.variable: value}, blocks)
            case Prefetch():
                yield node.place.variable, tuple(s.evaluate(values) for s in node.place.subscripts)
            case Allocate() | Block():
                yield from asked(node.body, values, blocks)
            case If():
                holds = eval(str(node.condition), {}, dict(values))
                yield from asked(node.then if holds else node.otherwise, values, blocks)
            case _:
                pass


def calls_of(text: str, shapes: tuple[tuple[int, ...], ...], l2_bytes: int) -> Function:
    x, w = (np.zeros(shape, np.float32) for shape in shapes)
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=l2_bytes, cores=1)
    program = polyml.einsum(text, target=target, threads=1)
    code = lower_bound(program.program, program.key_of(x, w), program.options, {"w"})
    return code.calls[2][-1]


@pytest.mark.parametrize(
    ("text", "shapes", "l2_bytes", "blocks"),
    [
        (WINDOWS, ((64, 7, 7), (512, 64, 3, 3)), 2**20, 1),
        (WINDOWS, ((256, 7, 7), (512, 256, 3, 3)), 2**21, 1),  # sums in parts
        (WINDOWS, ((256, 7, 7), (96, 256, 3, 3)), 2**18, 2),  # blocks of the sum
        (WINDOWS, ((251, 7, 7), (96, 251, 3, 3)), 2**18, 2),  # a last one that is shorter
        (PRODUCT, ((509, 7, 7), (512, 509)), 2**18, 2),
        (PRODUCT, ((512, 7, 7), (512, 512)), 2**20, 1),  # a rest of filters
        (PRODUCT, ((1024, 7, 7), (1024, 1024)), 2**21, 1),  # blocks of several panels
        (PRODUCT, ((1024, 14, 14), (512, 1024)), 2**21, 1),  # more steps than lines: several ask for the same
    ],
)
@pytest.mark.few(3)
def test_the_lines_of_the_next_block_are_asked_for(
    text: str, shapes: tuple[tuple[int, ...], ...], l2_bytes: int, blocks: int
) -> None:
    function = calls_of(text, shapes, l2_bytes)
    places = [place for place in asked(function.body, {}, blocks) if place[0].endswith("_panels")]
    assert places
    (name,) = {name for name, _ in places}
    (panels,) = (v for v in function.arguments if v.name == name)
    size = prod(e.constant for e in panels.shape[blocks:])
    assert {at[:blocks] for _, at in places} == {(1,) * (blocks - 1) + (2,)}
    lines = [line for line, _ in groupby(at[-1] // 16 for _, at in places)]
    assert all(not any(at[blocks:-1]) for _, at in places)
    within = [line for line in lines if line < size // 16]
    # Rows of windows at the border have fewer terms (codegen/passes/sums/skip_zeros.py), and ask for fewer lines.
    least = 0.95 if text is WINDOWS else 1
    assert len(set(within)) == len(within) >= least * (size // 16)
    assert len(lines) <= 1.5 * (size // 16)

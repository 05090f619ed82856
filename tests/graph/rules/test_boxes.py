"""Domains that are boxes."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.graph.ir import Equation
from polyml.graph.rules import boxes


def equations(text: str, *shapes: tuple[int, ...]) -> list[Equation]:
    program = pm.einsum(text)
    assert isinstance(program, pm.Einsum)
    ops = program.lower(*(np.zeros(shape, np.float32) for shape in shapes)).stages.graph.ops
    return [op for op in ops if isinstance(op, Equation)]


def test_boxes_are_known_by_their_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    product = equations(
        "def f(x: f32['N K'], w: f32['K M']):\n    y[i, j] = x[i, k] * w[k, j]\n    return y\n", (3, 4), (4, 5)
    )
    triangle = equations("def f(x: f32['N N']):\n    y[i] = sum[j, j <= i](x[i, j])\n    return y\n", (6, 6))
    assert [boxes.box_extents(one) for one in triangle] == [None]
    monkeypatch.setattr(boxes, "box", lambda *given: pytest.fail("a set was made to compare with"))
    assert [sorted(found.values()) for one in product if (found := boxes.box_extents(one))] == [[3, 4, 5]]

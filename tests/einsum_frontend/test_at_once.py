"""The interpreter evaluates all instances of an assignment at once where it can: the same bits, and the same errors, as one instance after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.interpreter.run import Run
from polyml.einsum_frontend.interpreter.types import Type
from polyml.einsum_frontend.interpreter.values import Evaluator
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing.cases import Case
from polyml.testing.strategies import programs
from tests.differential.oracles import results_of


class OneByOne(Evaluator):
    """An evaluator that is not the plain one."""


class InOrder(Run):
    def evaluator(self, types: Mapping[int, Type], ranges: Mapping[str, range]) -> Evaluator:
        return OneByOne(self.cells, types, ranges, self.wide)


def outcome(text: str, given: list[Any], *, run: type[Run], wide: bool) -> list[Any]:
    """Results and arguments after it, or the error."""
    own = [np.copy(x) if isinstance(x, np.ndarray) else x for x in given]
    try:
        return [*results_of(interpret(parse(Source(text)), *own, run=run, wide=wide)), *own]
    except Exception as fault:
        return [type(fault), str(fault)]


def check(text: str, given: list[Any]) -> list[Any]:
    for wide in (False, True):
        found, expected = (outcome(text, given, run=run, wide=wide) for run in (Run, InOrder))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, type | str):
                assert a == b
            else:
                np.testing.assert_array_equal(a, b)
                assert np.asarray(a).dtype == np.asarray(b).dtype
    return found


@given(programs())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(case: Case) -> None:
    check(case.text, list(case.fresh_arguments()))


HEAD = 'def f(x: {t}["N M"], c: {t}["N M"], k: i64["N"]):\n    y: {t}["N M"] = 1\n    for t in range(0, 2):\n        {line}\n    return y\n'
LINES = {
    "an edge": "y[i, j] = where(j > 0, x[i, j - 1], c[i, j]) + t",
    "an edge that is read all the same": "y[i, j] = where(c[i, j] > 0, x[i, j - 1], c[i, j])",
    "a border": "y[i, j] = pad(x, ((1, 1), (0, 2)))[i + 2, j + 1]",
    "a triangle": "y[i, j] = sum[p, p <= j](x[i, p] * c[i, p])",
    "a greatest element of none": "y[i, j] = max[p, p < j](x[i, p])",
    "a greatest element": "y[i, j] = max[p, p <= j and p != 2](x[i, p]) - min[p](c[i, p])",
    "rows of a table": "y[i, j] = x[k[i], j] * 2 + k[i]",
    "rows beyond a table": "y[i, j] = x[k[i] + 1, j]",
    "a part": "y[2*i, j] = x[i, j] - x[i // 2, M - 1 - j % 3]",
    "an update": "y[i, j] += x[i, j] / 3",
    "a sum into few elements": "y[i, 0] += x[i, j]",
    "conditions on numbers": "y[i, j] = where(0 <= x[i, j] < 2 and not c[i, j] == 1 or i == j, x[i, j] ** 2, -c[i, j])",
    "comparisons of sums": "y[i, j] = where(any[p](x[i, p] > c[p % N, j]), 1, prod[p](c[i, p]))",
    "functions": "y[i, j] = {t}(exp(-abs(x[i, j])) + relu(c[i, j]) % 3 + floor(sqrt(abs(c[i, j]))) // 2)",
    "where a row is greatest": "y[i, j] = argmax[p](x[i, p])",
    "an older element": "y[i, j] = y[i, j] + y[N - 1 - i, j]",
    "the same element twice": "y[i // 2, j] = x[i, j]",
    "numbers of the loop": "y[i, j] = (i * 3 - j * t) % 5 + N",
}


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "u64", "c64"])
@pytest.mark.parametrize("name", LINES)
@pytest.mark.few(20)
def test_forms(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    line = LINES[name].replace("{t}", dtype)
    text = HEAD.replace("{line}", line).replace("{t}", dtype)
    kind = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "u64": np.uint64, "c64": np.complex64}[dtype]
    check(text, [*(rng.integers(0, 7, (4, 5)).astype(kind) for _ in range(2)), np.array([3, 0, 2, 1])])


def test_elements_that_are_not_written() -> None:
    text = 'def f(x: f32["N"]):\n    y: f32["N"]\n    y[2*i] = x[2*i]\n    z[i] = y[i] + y[i]\n    return z\n'
    assert "before it is written" in check(text, [np.ones(9, np.float32)])[1]


def test_instances_share_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Evaluator, "value")
    text = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = relu(x[n, k] * w[k, m])\n    return y\n'
    x, w = np.ones((5, 4), np.float32), np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(interpret(parse(Source(text)), x, w), x @ w)

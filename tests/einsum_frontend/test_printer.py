"""Printed programs: the text is a program again, and the same one."""

from __future__ import annotations

import pytest

from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.printer import format_expression, format_program
from polyml.einsum_frontend.syntax import Assign
from polyml.source import Source

from .marked import program, resolved

WHOLE = """
def f(x: f32["N K"], t: f32["N + 1, 4"], one: f32["K - 1,"], w: f32["K M"], b: f32["M"], s: f32, n: int):
    y: f32["N M"] = -inf
    z: i64
    z = 3
    for t1 in range(N - 1, -1, -1):
        if 0 <= t1 < n and (i > t1 or not j == 2):
            y[i, j] = relu(x[i, k] * w[k, j] + b[j]) ** 2
        else:
            if i == 0:
                y[i, j] += 1
    a, c = other(x, s, N + 1)
    other2(x)
    q[i, k] = pad(x, ((0, n), (1, 1)))[i, k + 1] - max[r < 3, h](x[h + r, k])
    return y, q
"""


def test_a_whole_program() -> None:
    expected = WHOLE.strip("\n") + "\n"
    assert format_program(parse(Source(WHOLE))) == expected


EXPRESSIONS = [
    "a - (b - c)", "a - b - c", "a * (b + c)", "a / (b / c)", "a / b / c", "-a * b", "-(a + b)", "(-a) ** 2", "-a ** 2", "a ** -b", "(a ** b) ** c",
    "a ** b ** c", "not a < b", "not (a and b)", "(a or b) and c", "a or b and c", "(a < b) < c", "a < b <= c != d", "(a < b) + 1", "--a", "a % (b * c)",
    "a // b * c", "where(a < b, a, b)", "f32(a) * 1e-30", "any[k, k < 3 and 0 <= n](x[n, k])", "1.0 + True", "(a == b) == c", "-(a * b)", "(-a) * b", "a * -b",
    "max(a, b, c)", "pad(x, ((1, 2),))[n + 1]",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_print_with_the_parentheses_they_need(text: str) -> None:
    def printed(source: str) -> str:
        (statement,) = parse(Source(program(f"y = {source}"))).body
        assert isinstance(statement, Assign)
        return format_expression(statement.value)

    without = {"(-a) ** 2": "(-a) ** 2", "-a ** 2": "-a ** 2", "(-a) * b": "-a * b", "a ** b ** c": "a ** b ** c"}
    assert printed(text) == without.get(text, text)
    assert printed(printed(text)) == printed(text)


RESOLVED = [
    program("y[n, m] = relu(x[n, k] * w[k, m] + b[m])", "return y"),
    program("u[k] = x[n, k]", "y[k] = sum[k](x[k, k]) * sum[r < 3, k](x[r, k]) * u[k]", "return y"),
    program("s = argmax[n](v[n])", "q = x[n, k] * x[n, k]", "y[k] = x[s, k] / v[s] ** 2 - pi", "return s, y"),
    program(
        "for t in range(1, N):",
        "    if i >= t:",
        "        v[i] -= x[t, k] * x[i, k] * v[t]",
        parameters='x: f32["N K"], v: f32["N"]',
    ),
]


@pytest.mark.parametrize("text", RESOLVED, ids=range(len(RESOLVED)))
def test_a_printed_resolved_program_resolves_to_itself(text: str) -> None:
    printed = format_program(resolved(text))
    assert "sum[" in printed
    assert format_program(resolved(printed)) == printed


def test_an_implied_sum_below_a_condition_is_written_out() -> None:
    text = program("y: f32['N'] = 0", "if k < n:", "    y[n] += 2 * x[n, k]", "return y")
    assert "    if k < n:\n        y[n] += sum[k](2 * x[n, k])\n" in format_program(resolved(text))

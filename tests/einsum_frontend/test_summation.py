"""The summation convention, rule by rule, and its refusals with the readings that they show."""

from __future__ import annotations

import pytest

from polyml.einsum_frontend.syntax import Assign, IndexRef, Reducer
from polyml.einsum_frontend.walk import walk

from .marked import check_refused, printed, program, resolved

PARAMETERS = 'x: f32["N K"], w: f32["K M"], b: f32["M"], v: f32["N"], u: f32["K"], c: f32["N K J"], ids: i64["N"], alpha: f32, h: f32["J"]'

SUMS = [
    # rule 1: two or more factors
    ("y[n, m] = x[n, k] * w[k, m]", "sum[k](x[n, k] * w[k, m])"),
    ("y[n, m] = relu(x[n, k]) * w[k, m]", "sum[k](relu(x[n, k]) * w[k, m])"),
    ("y[n] = x[n, k] ** 2 * u[k]", "sum[k](x[n, k] ** 2 * u[k])"),
    ("y[n] = (x[n, k] + v[n]) * u[k]", "sum[k]((x[n, k] + v[n]) * u[k])"),
    ("y[n] = x[n, k] * k", "sum[k](x[n, k] * k)"),
    ("y[n] = where(k < n, x[n, k], 0) * u[k]", "sum[k](where(k < n, x[n, k], 0) * u[k])"),
    ("y[n, m] = 2 * (x[n, k] * w[k, m])", "sum[k](2 * (x[n, k] * w[k, m]))"),
    ("y[n, m] = -(x[n, k] * (2 * w[k, m]))", "sum[k](-(x[n, k] * (2 * w[k, m])))"),
    ("y[n, m] = x[n, k] * w[k, m] / b[m]", "sum[k](x[n, k] * w[k, m] / b[m])"),
    ("y[n, m] = x[n, k] / b[m] * w[k, m]", "sum[k](x[n, k] / b[m] * w[k, m])"),
    ("s = v[n] * v[n]", "sum[n](v[n] * v[n])"),
    # rule 2: one factor, a plain access
    ("y[n] = x[n, k]", "sum[k](x[n, k])"),
    ("y[n] = -2 * x[n, k]", "sum[k](-2 * x[n, k])"),
    ("y[n] = x[n, k] / 3", "sum[k](x[n, k] / 3)"),
    ("s = x[n, k]", "sum[n, k](x[n, k])"),
    ("s = x[n, n]", "sum[n](x[n, n])"),
    ("s = u[ids[n]]", "sum[n](u[ids[n]])"),
    ("y[n] = pad(x, 1)[n, k]", "sum[k](pad(x, ((1, 1), (1, 1)))[n, k])"),
    ("y[n] = x[n, k] * w[k, m]", "sum[k, m](x[n, k] * w[k, m])"),
    # rule 3: inside a parenthesized sum, a function, a reducer
    ("y[n, m] = relu(x[n, k] * w[k, m] + b[m])", "relu(sum[k](x[n, k] * w[k, m]) + b[m])"),
    ("y[n] = 2 * (x[n, k] * u[k] + v[n])", "2 * (sum[k](x[n, k] * u[k]) + v[n])"),
    ("y[n] = (x[n, k] * u[k] + v[n]) / 2", "(sum[k](x[n, k] * u[k]) + v[n]) / 2"),
    ("y[n] = -(x[n, k] * u[k] - v[n])", "-(sum[k](x[n, k] * u[k]) - v[n])"),
    ("y[n] = where(n > 0, x[n, k] * u[k], 0)", "where(n > 0, sum[k](x[n, k] * u[k]), 0)"),
    ("y[n] = max[m](x[n, k] * w[k, m])", "max[m](sum[k](x[n, k] * w[k, m]))"),
    ("y[n] = exp(relu(x[n, k] * u[k]))", "exp(relu(sum[k](x[n, k] * u[k])))"),
    ("y[n] = relu(c[n, k, j] * h[j]) * u[k]", "sum[k](relu(sum[j](c[n, k, j] * h[j])) * u[k])"),
    # each term has its own sum
    ("y[n] = alpha * x[n, k] * u[k] + 3 * c[n, k, j]", "sum[k](alpha * x[n, k] * u[k]) + sum[k, j](3 * c[n, k, j])"),
    ("y[n] = v[n] - (x[n, k] + v[n])", "v[n] - (sum[k](x[n, k]) + v[n])"),
    ("y[n, m] = x[n, k] * w[k, m] + b[m]", "sum[k](x[n, k] * w[k, m]) + b[m]"),
    # nothing is missing
    ("y[n, k] = exp(x[n, k]) / u[k]", "exp(x[n, k]) / u[k]"),
    ("y[n] = sum[k](exp(x[n, k])) ** 2", "sum[k](exp(x[n, k])) ** 2"),
]


@pytest.mark.parametrize(("statement", "value"), SUMS, ids=[row[0] for row in SUMS])
def test_sum(statement: str, value: str) -> None:
    name, _, _ = statement.partition(" = ")
    (line, _) = printed(statement, f"return {name.partition('[')[0]}", parameters=PARAMETERS)
    assert line == f"{name} = {value}"


REFUSED = [
    (
        "y[n] = exp(-alpha * «x[n, k]»)",
        "one factor only",
        "exp(-alpha * sum[k](x[n, k])) or sum[k](exp(-alpha * x[n, k]))",
    ),
    ("y[n] = 2 * («x[n, k]» + v[n])", "one factor only", "2 * (sum[k](x[n, k]) + v[n])"),
    ("y[n, m] = «b[m] / x[n, k]»", "in a divisor", "b[m] / sum[k](x[n, k]) or sum[k](b[m] / x[n, k])"),
    ("y[n] = «x[n, k] * u[k] / x[n, k]»", "in a divisor", "sum[k](x[n, k] * u[k] / x[n, k])"),
    ("y[n] = «x[n, k] ** 2»", "is no product", "sum[k](x[n, k]) ** 2 or sum[k](x[n, k] ** 2)"),
    (
        "y[n] = rsqrt(«x[n, k] ** 2»)",
        "is no product",
        "rsqrt(sum[k](x[n, k]) ** 2) or rsqrt(sum[k](x[n, k] ** 2)) or sum[k](rsqrt(x[n, k] ** 2))",
    ),
    (
        "y[n] = «x[n, k] * u[k] / (x[n, k] * x[n, k])»",
        "in a divisor",
        "sum[k](x[n, k] * u[k]) / sum[k](x[n, k] * x[n, k]) or sum[k](x[n, k] * u[k] / (x[n, k] * x[n, k]))",
    ),
    ("y[n] = «where(k < n, x[n, k], 0)»", "is no product", "write the reducer: sum[k](where(k < n, x[n, k], 0))"),
    ("y[n] = «min(x[n, k], u[k] + v[n])»", "is no product", "sum[k](min(x[n, k], u[k] + v[n]))"),
    ("y[n] = «x[n, k] > 0»", "is no product", "sum[k](x[n, k] > 0)"),
    ("y[n] = relu(«x[n, k]»)", "one factor only", "relu(sum[k](x[n, k]))"),
    ("y[n] = i32(«x[n, k]»)", "one factor only", "sum[k](i32(x[n, k]))"),
    ("y[n] = -(«x[n, k]» + v[n])", "one factor only", ""),
    ("y[n] = max[j](«c[n, k, j]»)", "one factor only", "sum[k](max[j](c[n, k, j]))"),
    ("y[n] = «max[j, j < k](c[n, j, j])» + u[k]", "is no product", "sum[k]"),
    ("y[n] = x[n, k] + v[n] * «k»", "is no product", "sum[k](v[n] * k)"),
    ("y[n] = «x[n, k] // 2»", "is no product", ""),
]


@pytest.mark.parametrize(("statement", "message", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refusal_shows_the_readings(statement: str, message: str, hint: str) -> None:
    text = program(statement, "return y", parameters=PARAMETERS)
    check_refused(text, f"it is not clear how 'k'.*{message}", hint=hint)


def test_min_plus_refusal_of_two_accesses() -> None:
    text = program("p[i, j] = min(p[i, j], «p[i, k]» + p[k, j])", parameters='p: f32["N N"]')
    check_refused(text, "it is not clear how 'k'", hint="min(p[i, j], sum[k](p[i, k] + p[k, j])) or sum[k](min(")


def test_sums_of_the_terms_share_their_index() -> None:
    body = resolved(program("y[n] = x[n, k] * u[k] + c[n, k, j]", "return y", parameters=PARAMETERS)).body
    assert isinstance(body[0], Assign)
    sums = [e for e in walk(body[0].value) if isinstance(e, Reducer)]
    assert [[item.name for item in s.items if isinstance(item, IndexRef)] for s in sums] == [["k"], ["k", "j"]]
    assert all(s.implied and s.kind == "sum" for s in sums)


def test_an_explicit_sum_is_not_implied() -> None:
    body = resolved(program("y[n] = sum[k](x[n, k])", "return y")).body
    assert isinstance(body[0], Assign)
    assert isinstance(body[0].value, Reducer)
    assert not body[0].value.implied


def test_updates_sum_as_if_alone_and_left_indices_accumulate() -> None:
    lines = [
        'y: f32["N"] = 0',
        "y[n] += x[n, k] * u[k]",
        "y[2 * n + k] -= x[n, k]",
        "y[ids[n]] += 1",
        "y[n] *= sum[k](u[k])",
    ]
    assert printed(*lines, "return y", parameters=PARAMETERS)[1:5] == [
        "y[n] += sum[k](x[n, k] * u[k])",
        "y[2 * n + k] -= x[n, k]",
        "y[ids[n]] += 1",
        "y[n] *= sum[k](u[k])",
    ]


@pytest.mark.parametrize("op", ["*=", "/="])
def test_products_and_quotients_sum_nothing(op: str) -> None:
    check_refused(program(f"v[n] {op} x[n, «k»]"), "sums nothing, and the left side lacks 'k'", hint="prod[k]")

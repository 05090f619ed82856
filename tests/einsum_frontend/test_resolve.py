"""Names told apart, rule by rule of the language page."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import polyml
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.signature import result_ranks, written_parameters
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Program,
    Reducer,
    SizeRef,
    Statement,
    Subscript,
)
from polyml.einsum_frontend.walk import index_names, walk
from polyml.errors import NotAffineError
from polyml.testing import verify

from .marked import printed, program, resolved


def values(p: Program) -> list[Expression]:
    return [statement.value for statement in p.body if isinstance(statement, Assign)]


def kinds(e: Expression) -> dict[str, type]:
    """What each bare name of an expression became."""
    found: dict[str, type] = {}
    for part in walk(e):
        match part:
            case IndexRef(name=name) | LoopRef(name=name) | SizeRef(name=name):
                found[name] = type(part)
            case Subscript(tensor=str() as name, subscripts=()):
                found[name] = Subscript
            case _:
                pass
    return found


def test_names_of_each_kind() -> None:
    lines = [
        "y: f32['N'] = 0",
        "s = 2",
        "for t in range(N):",
        "    y[i] = x[i, k] * x[i, k] * t * N * m * a * s * C * pi",
    ]
    text = program(*lines, "return y", parameters='x: f32["N K"], m: int, a: f32')
    p = resolved(text, {"C": 3})
    loop = p.body[2]
    assert isinstance(loop, ForLoop)
    (statement,) = loop.body
    assert isinstance(statement, Assign)
    expected = {"i": IndexRef, "k": IndexRef, "t": LoopRef, "N": SizeRef, "m": SizeRef, "a": Subscript, "s": Subscript}
    assert kinds(statement.value) == expected
    assert [e.value for e in walk(statement.value) if isinstance(e, Number)] == [3, np.pi]
    assert p.captured == {"C": 3}


def test_an_index_is_never_looked_up_outside() -> None:
    p = resolved(program("y[n] = x[n, k] * k", "return y"), {"n": 3, "k": 4})
    assert kinds(values(p)[0]) == {"n": IndexRef, "k": IndexRef}
    assert p.captured == {}


def test_a_0d_tensor_assigned_before_gathers() -> None:
    lines = ["y[k] = v[k]", "k = argmax[n](v[n])", "z = v[k]", "return z"]
    p = resolved(program(*lines))
    assert index_names(values(p)[0]) == {"k"}
    gathered = values(p)[2]
    assert isinstance(gathered, Subscript)
    (subscript,) = gathered.subscripts
    assert subscript == Subscript("k", (), subscript.span)


def test_a_loop_variable_is_an_index_after_its_loop() -> None:
    p = resolved(program("y: f32['N'] = 0", "for n in range(N):", "    y[n] = v[n]", "z[n] = v[n]", "return y, z"))
    assert kinds(values(p)[0]) == {"n": IndexRef}


def test_a_tensor_with_dimensions_can_share_its_name_with_an_index() -> None:
    assert printed("k[n] = x[n, k]", "y[n] = k[n] * x[n, k]", "return y")[:2] == [
        "k[n] = sum[k](x[n, k])",
        "y[n] = sum[k](k[n] * x[n, k])",
    ]


def test_a_reducer_binds_its_items() -> None:
    lines = [
        ("y[k] = sum[k](u[k])", "y[k] = sum[k_1](u[k_1])"),
        ("y[n] = sum[k](x[n, k]) * sum[k](x[n, k])", "y[n] = sum[k](x[n, k]) * sum[k_1](x[n, k_1])"),
        ("y[n] = sum[k](x[n, k]) * x[n, k] * u[k]", "y[n] = sum[k](sum[k_1](x[n, k_1]) * x[n, k] * u[k])"),
        ("y[n] = sum[k](sum[k](x[n, k]) * u[k])", "y[n] = sum[k](sum[k_1](x[n, k_1]) * u[k])"),
        ("y[n] = sum[r < 3](x[n, r])", "y[n] = sum[r, r < 3](x[n, r])"),
        ("y[n] = sum[r <= 3](x[n, r])", "y[n] = sum[r, r <= 3](x[n, r])"),
        ("y[n] = sum[0 <= r < 3](x[n, r])", "y[n] = sum[r, 0 <= r < 3](x[n, r])"),
        ("y[n] = sum[k, 1 <= k < 3](x[n, k])", "y[n] = sum[k, 1 <= k < 3](x[n, k])"),
        ("y[n] = max[r < 2, s](x[n, s + r])", "y[n] = max[r, s, r < 2](x[n, s + r])"),
        ("y[n] = sum[k, n < 3](x[n, k])", "y[n] = sum[k, n < 3](x[n, k])"),
        (
            "y[n] = sum[k < 3](sum[m, k < m](x[n, k] * w[k, m]))",
            "y[n] = sum[k, k < 3](sum[m, k < m](x[n, k] * w[k, m]))",
        ),
        ("y[n] = sum[h, k, 2 * h + k == n](x[h, k])", "y[n] = sum[h, k, 2 * h + k == n](x[h, k])"),
        (
            "y[n] = sum[r < 3](x[n, r]) + sum[r < 2](x[n, r])",
            "y[n] = sum[r, r < 3](x[n, r]) + sum[r_1, r_1 < 2](x[n, r_1])",
        ),
    ]
    for written, expected in lines:
        result = printed(written, "return y", parameters='x: f32["N K"], w: f32["K M"], u: f32["K"]')
        assert result[0] == expected


def test_a_condition_does_not_bind_a_loop_variable() -> None:
    lines = ["for t in range(N):", "    v[n] = sum[k, t < 3](x[n, k])"]
    assert printed(*lines)[1] == "    v[n] = sum[k, t < 3](x[n, k])"


def test_a_plain_item_shadows_a_loop_variable_and_a_0d_tensor() -> None:
    lines = ["s = 2", "for t in range(N):", "    v[n] += sum[s, t, t < s](x[s, t]) * s * t"]
    assert printed(*lines)[2] == "    v[n] += sum[s_1, t_1, t_1 < s_1](x[s_1, t_1]) * s * t"


def test_bound_names_differ_from_tensors_sizes_and_made_up_names() -> None:
    p = resolved(
        program(
            "s[n] = v[n]",
            "k_1[n] = v[n]",
            "y[k] = sum[k](u[k]) + sum[s](u[s])",
            "return y",
            parameters='v: f32["N"], u: f32["K"]',
        )
    )
    bound = [
        item.name
        for e in walk(values(p)[2])
        if isinstance(e, Reducer)
        for item in e.items
        if isinstance(item, IndexRef)
    ]
    assert bound == ["k_2", "s_1"]


def test_names_that_isl_cannot_read_are_replaced_everywhere() -> None:
    lines = [
        "mod_1[n] = v[n]",
        "α[n] = v[n]",
        "mod[exists] = v[exists]",
        "for let in range(N):",
        "    if exists > let:",
        "        mod[exists] += α[exists] * mod_1[exists]",
        "return mod, α",
    ]
    assert printed(*lines) == [
        "mod_1[n] = v[n]",
        "n_[n] = v[n]",
        "mod_[exists_] = v[exists_]",
        "for let_ in range(0, N, 1):",
        "    if exists_ > let_:",
        "        mod_[exists_] += n_[exists_] * mod_1[exists_]",
        "return mod_, n_",
    ]


def test_numbers_of_the_enclosing_scope() -> None:
    scope = {"A": 2, "bb": 0.5, "C": np.float32(1.5), "D": np.int64(7), "E": True, "F": np.array(3)}
    p = resolved(program("y[n] = v[n] * A * bb * C * D * E * F", "return y"), scope)
    assert p.captured == {"A": 2, "bb": 0.5, "C": 1.5, "D": 7, "E": True, "F": 3}
    assert [type(value) for value in p.captured.values()] == [int, float, float, int, bool, int]


def test_inf_nan_pi_are_numbers_even_if_the_scope_says_otherwise() -> None:
    p = resolved(program("y[n] = v[n] * pi + inf", "return y"), {"pi": 3})
    assert p.captured == {}


def test_sizes_of_parameters_are_symbolic_even_if_the_scope_has_a_number() -> None:
    p = resolved(program("y[n] = v[n] * N", "return y"), {"N": 4})
    assert p.captured == {}
    assert kinds(values(p)[0])["N"] is SizeRef


def test_a_size_without_a_bare_entry_is_captured() -> None:
    p = resolved(program("y[n] = x[n]", "return y", parameters='x: f32["T+1"]'), {"T": 4})
    assert p.captured == {"T": 4}
    assert 'x: f32["4 + 1,"]' in format_program(p)


def test_an_int_parameter_is_a_size_of_any_case() -> None:
    p = resolved(program("y[i] = x[i] * n", "return y", parameters='x: f32["n"], n: int'))
    (x, _) = p.parameters
    assert x.shape is not None
    assert isinstance(x.shape[0], SizeRef)


def test_every_name_is_told_apart() -> None:
    lines = [
        "y: f32['N M'] = -inf",
        "for t in range(0, N, 2):",
        "    if t < i and i < N:",
        "        y[i, m] = relu(x[i, k] * w[k, m])",
        "return y",
    ]

    def names(body: tuple[Statement, ...]) -> list[Expression]:
        found: list[Expression] = []
        for statement in body:
            match statement:
                case Assign():
                    found += [p for e in (*(statement.subscripts or ()), statement.value) for p in walk(e)]
                case ForLoop():
                    found += [p for e in (statement.start, statement.stop, statement.step) for p in walk(e)]
                    found += names(statement.body)
                case IfBlock():
                    found += [*walk(statement.condition), *names(statement.body)]
                case _:
                    pass
        return found

    parts = names(resolved(program(*lines)).body)
    assert len(parts) > 10
    assert not any(isinstance(part, Name) for part in parts)


def test_conditions_name_the_indices_of_their_statements() -> None:
    lines = ["if k < i and i < N - 1:", "    x[i, k] = 0", "    x[i, k] += w[i, k] * v[j]", "else:", "    x[i, k] = 1"]
    p = resolved(program(*lines, parameters='x: f32["N N"], w: f32["N N"], v: f32["N"]'))
    (block,) = p.body
    assert isinstance(block, IfBlock)
    assert kinds(block.condition) == {"k": IndexRef, "i": IndexRef, "N": SizeRef}


def test_a_condition_over_summed_indices_above_an_update() -> None:
    lines = ["if k < i:", "    v[i] += x[i, k] * v[k] - 2 * x[k, i]"]
    assert printed(*lines) == ["if k < i:", "    v[i] += sum[k](x[i, k] * v[k]) - sum[k](2 * x[k, i])"]


def test_a_condition_may_name_a_captured_number() -> None:
    assert printed("if n < limit:", "    v[n] = 0", namespace={"limit": 5})[0] == "if n < 5:"


@pytest.mark.parametrize(("step", "value"), [("-1", -1), ("2", 2), ("-S", -3), ("1 - 2", None)])
def test_steps_are_constants(step: str, value: int | None) -> None:
    lines = [f"for t in range(N, 0, {step}):", "    v[n] = t"]
    if value is None:
        with pytest.raises(Exception, match="integer other than 0"):
            resolved(program(*lines))
        return
    (loop,) = resolved(program(*lines), {"S": 3}).body
    assert isinstance(loop, ForLoop)
    assert isinstance(loop.step, Number)
    assert loop.step.value == value


def test_powers_and_quotients_of_sizes_are_affine() -> None:
    assert printed("y[n] = v[2 ** 3 * n // N]", "return y", namespace={})[0] == "y[n] = v[2 ** 3 * n // N]"


def test_a_tensor_read_where_an_earlier_iteration_wrote_it() -> None:
    lines = ["h: f32['N']", "for t in range(3):", "    if t > 0:", "        v[n] = h[n]", "    h[n] = v[n]"]
    assert len(printed(*lines)) == 5


DENSE = resolved(
    program(
        "y[n, m] = relu(x[n, k] * w[k, m] + b[m])", "return y", parameters='x: f32["N K"], w: f32["K M"], b: f32["M"]'
    )
)
SCALE = resolved(program("x[i] *= a * N", parameters='x: f32["N"], a: f32, n: int'))
NAMESPACE = {"dense": SimpleNamespace(program=DENSE), "scale": SimpleNamespace(program=SCALE)}


def test_a_call_of_another_program() -> None:
    p = resolved(program("h = dense(x, w, b)", "z[n] = h[n, m]", "return h, z"), NAMESPACE)
    call = p.body[0]
    assert isinstance(call, CallProgram)
    assert [arg.tensor for arg in call.args if isinstance(arg, Subscript)] == ["x", "w", "b"]
    assert p.programs == {"dense": DENSE}
    assert result_ranks(p) == (2, 1)
    assert written_parameters(p) == frozenset()


def test_a_call_that_writes_its_argument() -> None:
    p = resolved(program("scale(v, 2 * a, N - 1)", parameters='v: f32["N"], a: f32'), NAMESPACE)
    assert written_parameters(p) == {"v"}
    outer = resolved(program("h[n] = v[n]", "inner(h, 1.5)", "return h"), {"inner": SimpleNamespace(program=p)})
    assert written_parameters(outer) == frozenset()
    assert set(p.programs) == {"scale"}


def test_complex_numbers_of_the_enclosing_scope() -> None:
    w, z = 1 - 2j, np.complex64(3j)
    f = polyml.einsum('def f(x: f32["N"]):\n    y[n] = w * x[n] + z\n    return y\n')
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(f(x), (w * x + z).astype(np.complex64))
    assert verify(f, x)
    with pytest.raises(NotAffineError, match="an entry of a shape is not affine"):
        polyml.einsum('def f(x: f32["N N+w"]):\n    return x\n')

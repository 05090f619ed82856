"""The fuzzer finds nothing, finds what is there, and shrinks it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from polyml.__main__ import main
from polyml.dtypes import f32, i64
from polyml.einsum_frontend.interpreter.types import Type, promote_types
from polyml.testing.cases import Case
from polyml.testing.einsum_calls import Call
from polyml.testing.fuzz import check_call, check_program, search
from polyml.testing.generate_tensors import Tensor, Tensors
from polyml.testing.strategies import einsum_calls, programs
from polyml.testing.variants import VARIANTS, Trial, Variant


def test_it_finds_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sixth of the examples that it counts: others of these strategies run elsewhere."""
    monkeypatch.setenv("POLYML_CACHE", "0")
    monkeypatch.setattr("polyml.testing.fuzz.search", lambda *given: search(*given[:-1], -(-given[-1] // 6)))
    assert main(["fuzz", "--seconds", "0", "--seed", "7"]) == 0
    assert capsys.readouterr().out == (
        "40 einsum calls, 8 programs, 4 large ones and 4 in other types, seeds 7..7: no failure\n"
    )


def test_scalars_of_numbers_alone_are_weak() -> None:
    """`s = sum[k < L](2)` beside f32 is f32: so is the rounding that is allowed."""
    read = Tensors(Random(0)).read(Tensor("s", i64, (), 6.0, 0, weak=True), "")  # type: ignore[arg-type]  # it chooses nothing
    assert promote_types(read.type, Type(f32)) == Type(f32)


def test_a_failing_program_is_shrunk_to_a_small_text() -> None:
    def check(case: Case) -> None:
        assert "for " not in case.text

    found = search(programs(max_statements=2), check, 1, 60)
    assert found is not None
    assert "for " in found.case
    assert found.fault.startswith("AssertionError")
    assert len(found.case.splitlines()) <= 8
    assert search(programs(max_statements=2), check, 1, 60) == found


def test_a_failing_call_is_shrunk() -> None:
    def check(call: Call) -> None:
        assert not any(isinstance(a, np.ndarray) and a.ndim == 3 for a in call.arguments)

    found = search(einsum_calls(), check, 3, 25)
    assert found is not None
    assert found.case.startswith("einsum(")
    assert len(found.case) < 400


def test_a_failure_that_does_not_come_again_is_told() -> None:
    seen: list[Call] = []

    def check(call: Call) -> None:
        seen.append(call)
        assert len(seen) != 5, "the fifth"

    found = search(einsum_calls(), check, 3, 25)
    assert found is not None
    assert found.case == repr(seen[4])
    assert found.fault.startswith("AssertionError: the fifth")
    assert "not by itself" in found.fault


def test_what_fails_while_a_case_is_drawn_is_no_failure_of_the_check() -> None:
    drawn: list[int] = []

    def fail_once(number: int) -> int:
        drawn.append(number)
        if len(drawn) == 1:
            raise RuntimeError("not again")
        return number

    with pytest.raises(Flaky):
        search(st.integers().map(fail_once), lambda _: None, 1, 20)


def test_what_is_right_passes() -> None:
    check_call(Call(("ij->j", np.ones((2, 3)))))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant(variant: Variant) -> None:
    """One program, right however it is compiled; a wrong result and a fault of the cache are noticed."""
    text = 'def f(x: f32["N M"]):\n    y[i, j] = sum[r < 2](x[2 * i + r, j])\n    return y\n'
    case = Case(text, (np.arange(35, dtype=np.float32).reshape(7, 5),), 2)
    check_program(Trial(case, variant))
    found = variant.run(case)
    assert found is not None
    assert found[0].shape == (3, 5)


def test_a_fault_of_the_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise AssertionError("damaged")

    monkeypatch.setattr("polyml.runtime.compiled.Compiled.from_bytes", broken)
    case = Case('def f(x: f32["N"]):\n    y[i] = 2 * x[i]\n    return y\n', (np.ones(3, np.float32),))
    for variant in VARIANTS:
        if variant.kept:
            with pytest.raises(AssertionError, match="damaged"):
                check_program(Trial(case, variant))
        else:
            check_program(Trial(case, variant))


def test_programs_that_take_the_interpreter_for_ever_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def f(x: f32["N"]):\n    y[i] = max[j](x[j] - max[k](x[k] * x[j]))\n    return y\n'
    text = text.replace("y[i] = ", "y[i] = x[i] + ")
    case = Case(text, (np.arange(9, dtype=np.float32),))
    wrong = Variant({"precise": True})
    monkeypatch.setattr(Variant, "run", lambda self, case: (np.zeros(9, np.float32), case.fresh_arguments()))
    with pytest.raises(AssertionError):
        check_program(Trial(case, wrong))
    monkeypatch.setattr("polyml.testing.fuzz.MOST", 500)
    check_program(Trial(case, wrong))

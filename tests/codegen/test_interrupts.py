"""Ctrl-C while something compiles: no callback of isl's is left by an exception, and the next call compiles as if nothing had been."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.codegen import instances
from polyml.interrupts import signals_wait
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.callbacks import mapped_bottom_up, pieces_of

LOWER = 'def lower(a: f32["N N"]):\n    y[i, j] = sum[k, k <= i](a[i, k] * a[k, j])\n    return y\n'
"""A triangle: boxes need no isl."""
ONES = np.ones((5, 5), "f4")


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, whatever the one that runs the tests has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_handlers_run_behind_the_block() -> None:
    came: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        came.append("handler")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with signals_wait():
            signal.raise_signal(signal.SIGALRM)
            came.append("block")
        assert came == ["block", "handler"]
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_is_not_lost_where_the_block_fails() -> None:
    def fails() -> None:
        with signals_wait():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("what comes of an isl that is out of operations")

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_have_no_handlers() -> None:
    found: list[object] = []

    def run() -> None:
        with signals_wait():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_an_interrupt_in_the_middle_of_isl(monkeypatch: pytest.MonkeyPatch) -> None:
    """isl would go on without the node, and Python's interpreter end with a fault of memory."""
    f = polyml.einsum(LOWER, dynamic=True)
    look = instances._Scan.look
    interrupts = [True]

    def interrupted(self: instances._Scan, build: isl.AstBuild) -> instances._Found:
        if interrupts.pop() if interrupts else False:
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler, "the interrupt would leave here"
            signal.raise_signal(signal.SIGINT)
        return look(self, build)

    monkeypatch.setattr(instances._Scan, "look", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f(ONES)
    np.testing.assert_array_equal(f(ONES), np.tril(ONES) @ ONES)


@pytest.mark.parametrize("error", [MemoryError, ValueError])
@pytest.mark.few(1)
def test_a_fault_in_the_middle_of_isl(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: instances._Scan, build: isl.AstBuild) -> instances._Found:
        raise error("in a callback")

    f = polyml.einsum(LOWER, dynamic=True)
    with monkeypatch.context() as patched:
        patched.setattr(instances._Scan, "look", fails)
        with pytest.raises(error, match="in a callback"):
            f(ONES)
    np.testing.assert_array_equal(f(ONES), np.tril(ONES) @ ONES)


def test_isl_runs_out_of_operations_in_a_callback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What isl refuses then does not leave the callback either: islpy would say so, and isl go on without the node."""
    look = instances._Scan.look

    def runs_out(self: instances._Scan, build: isl.AstBuild) -> instances._Found:
        found = look(self, build)
        isl.DEFAULT_CONTEXT.set_max_operations(1)
        return found

    f = polyml.einsum(LOWER, dynamic=True)
    with monkeypatch.context() as patched:
        patched.setattr(instances._Scan, "look", runs_out)
        with pytest.raises(BudgetExhausted), operation_budget(0, phase="test"):
            f(ONES)
    assert "islpy" not in capfd.readouterr().err
    np.testing.assert_array_equal(f(ONES), np.tril(ONES) @ ONES)


def test_isl_runs_out_of_operations_while_a_tree_is_changed(capfd: pytest.CaptureFixture[str]) -> None:
    tree = isl.Schedule.from_domain(isl.UnionSet("{ S[i, j] : 0 <= i, j < 8 }"))
    order = isl.MultiUnionPwAff("[{ S[i, j] -> [(i)] }, { S[i, j] -> [(j)] }]")
    tree = tree.insert_partial_schedule(order)

    def change(node: isl.ScheduleNode) -> isl.ScheduleNode:
        isl.Set("{ [i] : 0 <= i < 10 }").is_empty()
        return node

    with pytest.raises(BudgetExhausted), operation_budget(1, phase="test"):
        mapped_bottom_up(tree, change)
    assert "islpy" not in capfd.readouterr().err
    assert mapped_bottom_up(tree, change).get_root().get_tree_depth() == tree.get_root().get_tree_depth()
    with pytest.raises(ValueError, match="its own"):
        mapped_bottom_up(tree, _fails)


def _fails(node: isl.ScheduleNode) -> isl.ScheduleNode:
    raise ValueError("its own")


def test_pieces_are_read_without_a_function_of_pythons() -> None:
    value = isl.PwAff("[n] -> { [(n)] : n > 0; [(2n)] : n <= 0 }")
    assert str(pieces_of(value)) == str(value.get_pieces())
    assert str(pieces_of(isl.Aff("[n] -> { [(n)] }"))) == str(isl.Aff("[n] -> { [(n)] }").get_pieces())
    came: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: came.append(frame.f_code.co_name) if event == "call" else None)
    pieces_of(value)
    sys.setprofile(before)
    assert came == ["pieces_of"]


BROKEN_OFF = """
import signal, sys
import numpy as np
import polyml

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name in pending:
            pending.remove(name)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
f = polyml.einsum('def f(x: f32["N"], s: f32):\\n    for t in range(1, N):\\n        x[t] += s * x[t - 1]\\n    return x')
x, pending = np.ones(5, "f4"), ["islpy._isl", "highspy._core"]
sys.meta_path.insert(0, CtrlC())
for extension in tuple(pending):
    try:
        CALL
    except KeyboardInterrupt:
        print(extension, extension in sys.modules)
assert f(np.ones(5, "f4"), 1.0).tolist() == [1, 2, 3, 4, 5]
"""


@pytest.mark.parametrize(
    "call",
    [
        "f(x, 1.0)",
        *(pytest.param(call, marks=pytest.mark.slow) for call in ("f.lower(x, 1.0)", "f.bind(s=1.0).explain(x)")),
    ],
)
def test_imports_of_extension_modules_are_not_broken_off(call: str) -> None:
    """nanobind ends the process where its module is imported for the second time."""
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN_OFF.replace("CALL", call)],
        env=os.environ | {"POLYML_CACHE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "islpy._isl True\nhighspy._core True\n"), ran.stderr

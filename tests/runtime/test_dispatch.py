"""Dispatch: one kernel per layout, found again, compiled once even when threads race, replaced in front without a Python frame."""

import inspect
import os
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

import polyml
from polyml.dtypes import f32
from polyml.errors import ArgumentError, DTypeError, ShapeError
from polyml.runtime.arguments import AnyInt, Layout, Wanted
from polyml.runtime.dispatch import FRONT, Dispatcher
from polyml.runtime.kernel import Kernel
from polyml.runtime.keys import Key
from polyml.runtime.signature import ArrayParameter, SizeParameter
from tests.runtime.handmade import array, copy_region, function, make_kernel, result


class Copies(Dispatcher):
    """o = x for a contiguous or strided first row; `compiled` lists the keys."""

    def __init__(self, symbolic: frozenset[str] = frozenset()) -> None:
        self.compiled: list[Key] = []
        super().__init__("copies", [Wanted("x", f32, 2), Wanted("n", None, None)], symbolic, self.compile_copy)

    def compile_copy(self, key: Key) -> Kernel:
        self.compiled.append(key)
        layout, n = key
        assert isinstance(layout, Layout)
        if 13 in layout.shape:
            raise ShapeError("no 13")
        size = SizeParameter(name="n", value=n if isinstance(n, int) else None)
        x: ArrayParameter = array("x", *layout.shape, strides=layout.strides)
        return make_kernel([x, size], [result("o")], copy_region("f", 4), [function("f", ("x", "o"))])


def test_one_kernel_per_layout_and_specialized_int() -> None:
    f = Copies()
    data = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    calls = [
        (data, 1),
        (data.T, 1),
        (data[::-1], 1),
        (data[:, ::2], 1),
        (data, 2),
        (data[:1], 1),
        (np.broadcast_to(data[1], (4, 6)), 1),
    ]
    for _ in range(3):
        for x, n in calls:
            assert f(x, n) == x[0, 0]
    assert len(f.compiled) == len(calls) == len(f.kernels)
    assert f.compiled[0] == (Layout(f32, (4, 6), None), 1)
    assert f(np.zeros((9, 6), np.float32)[:4], n=np.int64(1)) == 0
    assert len(f.compiled) == len(calls)


def test_symbolic_ints_share_a_kernel() -> None:
    f = Copies(frozenset({"n"}))
    x = np.ones((2, 2), np.float32)
    assert [f(x, n) for n in range(5)] == [1] * 5
    assert f.compiled == [(Layout(f32, (2, 2), None), AnyInt(0))]


def test_calls_do_not_pass_through_python() -> None:
    f = Copies()
    frames: list[str] = []
    arrays = [np.full((2, k), k, np.float32) for k in range(1, FRONT + 1)]
    for x in arrays:
        f(x, 1)

    def spy(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            frames.append(frame.f_code.co_name)

    sys.setprofile(spy)
    try:
        values = [f(x, 1) for x in arrays for _ in range(2)]
    finally:
        sys.setprofile(None)
    assert [int(v) for v in values] == [k for k in range(1, FRONT + 1) for _ in range(2)]
    assert set(frames) <= {"<listcomp>"}


def test_dispatchers_do_not_share_kernels() -> None:
    f, g = Copies(), Copies()
    x = np.ones((2, 2), np.float32)
    f(x, 1)
    assert not g.compiled
    assert isinstance(g, Copies)
    assert type(g).__name__ == "Copies"
    assert g(x, 1) == 1
    assert len(f.compiled) == len(g.compiled) == 1


def test_a_kernel_of_a_dispatcher_stays_itself() -> None:
    f = Copies()
    small, large = np.ones((2, 2), np.float32), np.ones((3, 3), np.float32)
    kernel = f.kernel_for(small, 1)
    f(large, 1)
    f(small, 1)
    with pytest.raises(ShapeError, match="compiled for"):
        kernel(large, 1)


def test_faults() -> None:
    f = Copies()
    x = np.ones((2, 2), np.float32)
    for _ in range(2):  # before and after the first kernel
        with pytest.raises(DTypeError, match="argument x"):
            f(np.ones((2, 2)), 1)
        with pytest.raises(ArgumentError, match="copies misses n"):
            f(x)
        with pytest.raises(ArgumentError, match="copies has no parameter m"):
            f(x, 1, m=1)
        with pytest.raises(ShapeError, match="no 13"):
            f(np.ones((13, 2), np.float32), 1)
        assert f(x, 1) == 1


def test_racing_threads_compile_once() -> None:
    f = Copies()
    original = f._compile

    def slowly(key: Key) -> Kernel:
        time.sleep(0.02)
        return original(key)

    f._compile = slowly
    arrays = [np.full((2, 1 + k % 6), k % 6, np.float32) for k in range(24)]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(20):
            for x in arrays:
                if f(x, 1) != x[0, 0]:
                    wrong.append(x)

    team = [threading.Thread(target=work) for _ in range(8)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong
    assert len(f.compiled) == 6


FORK = """
import os, sys, threading, time
import numpy as np, polyml
from polyml.runtime.dispatch import COMPILE_LOCK
f = polyml.einsum('def f(x: f32["N"]):\\n    y[n] = x[n] + 1\\n    return y\\n')
inside = threading.Event()
def compile_slowly():
    with COMPILE_LOCK:
        inside.set()
        time.sleep(0.3)
threading.Thread(target=compile_slowly).start()
inside.wait()
child = os.fork()
right = f(np.ones(3, np.float32)).sum() == 6
if child == 0:
    os._exit(0 if right else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not right)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_compilation() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], timeout=180, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_editors_show_of_a_call() -> None:
    text = 'def f(x: f32["N"], w: f32["N"]):\n    y[n] = x[n] * w[n]\n    return y\n'
    program = polyml.einsum(text)
    assert str(inspect.signature(program)) == "(x, w, *, out=None)"
    program(np.ones(3, np.float32), np.ones(3, np.float32))
    assert str(inspect.signature(program)) == "(x, w, *, out=None)"  # whatever calls go to by now
    assert str(inspect.signature(program.bind(w=[1, 2, 3]))) == "(x, *, out=None)"
    named = polyml.einsum('def f(out: f32["N"]):\n    y[n] = 2 * out[n]\n    return y\n')
    assert str(inspect.signature(named)) == "(out)"
    inspect.signature(type(program))

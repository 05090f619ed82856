"""polyml_parallel: every iteration runs once, whichever runtime carries it, and after a fork too."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from polyml.codegen.llvm.machine import Loaded, load_object
from polyml.errors import PolymlError
from polyml.options import overridden
from polyml.runtime.layout import array_header
from polyml.runtime.load import compile_plainly
from polyml.runtime.support import parallel_limited, support
from polyml.runtime.support_text import emit_support
from polyml.runtime.threads import emit_threads, find_openmp, thread_count
from polyml.target import available_cores

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def pieces(lower: int, upper: int, step: int, parallel: int | None = None) -> tuple[list[tuple[int, int]], set[int]]:
    """The (lo, hi) that the bodies got, in order, and the threads that ran them."""
    found: list[tuple[int, int]] = []
    runners: set[int] = set()

    def body(ctx: int, lo: int, hi: int) -> None:
        assert ctx == 77
        found.append((lo, hi))
        runners.add(threading.get_native_id())

    call = PARALLEL(support().symbols["polyml_parallel"] if parallel is None else parallel)
    call(BODY(body), 77, lower, upper, step)
    return sorted(found), runners


@pytest.fixture(params=["openmp", "plain"])
def three_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    shared = support()
    before = shared.threads
    shared.set_threads(3)
    shared.use_plain_threads(request.param == "plain")
    yield
    shared.set_threads(before)
    shared.use_plain_threads(False)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("step", [1, 4, 7])
@pytest.mark.parametrize(("lower", "upper"), [(0, 100), (-5, 6), (3, 4), (0, 2), (10, 10), (10, 3), (0, 29)])
def test_pieces_cover_the_range_once_and_on_its_grid(lower: int, upper: int, step: int) -> None:
    found, runners = pieces(lower, upper, step)
    iterations = [i for lo, hi in found for i in range(lo, hi, step)]
    assert iterations == list(range(lower, upper, step))
    assert all(lower <= lo < hi <= upper and (lo - lower) % step == 0 for lo, hi in found)
    assert len(found) == min(3, len(iterations))
    sizes = [len(range(lo, hi, step)) for lo, hi in found]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(runners) <= 3


@pytest.mark.usefixtures("three_threads")
def test_pieces_run_at_once() -> None:
    barrier = threading.Barrier(3, timeout=20)
    call = PARALLEL(support().symbols["polyml_parallel"])
    call(BODY(lambda ctx, lo, hi: barrier.wait()), 0, 0, 3, 1)
    assert not barrier.broken


@pytest.mark.usefixtures("three_threads")
def test_one_thread_calls_the_body_directly() -> None:
    support().set_threads(1)
    found, runners = pieces(0, 100, 3)
    assert found == [(0, 100)]
    assert runners == {threading.get_native_id()}


@pytest.mark.usefixtures("three_threads")
def test_a_kernel_may_use_fewer_or_more_threads() -> None:
    for threads in (1, 2, 5):
        address, _ = parallel_limited(threads)
        assert len(pieces(0, 100, 1, address)[0]) == threads


@pytest.mark.usefixtures("three_threads")
def test_a_parallel_loop_inside_another() -> None:
    seen: list[int] = []
    inner = PARALLEL(support().symbols["polyml_parallel"])
    one = BODY(lambda ctx, lo, hi: seen.extend(range(ctx + lo, ctx + hi)))
    outer = BODY(lambda ctx, lo, hi: [inner(one, 10 * i, 1, 6, 1) for i in range(lo, hi)] and None)
    inner(outer, 0, 1, 5, 1)
    assert sorted(seen) == [10 * i + j for i in range(1, 5) for j in range(1, 6)]


@pytest.mark.usefixtures("three_threads")
def test_many_callers_at_once() -> None:
    wrong: list[object] = []

    def caller() -> None:
        for _ in range(20):
            found, _ = pieces(0, 50, 2)
            if sorted(i for lo, hi in found for i in range(lo, hi, 2)) != list(range(0, 50, 2)):
                wrong.append(found)

    team = [threading.Thread(target=caller) for _ in range(4)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_without_openmp() -> None:
    code = compile_plainly(emit_support(array_header(), None))
    needed = {name: address for name, address in support().symbols.items() if not name.startswith("polyml_")}
    loaded: Loaded = load_object(code, ("polyml_parallel", "polyml_thread_count"), needed)
    ctypes.c_int32.from_address(loaded.addresses["polyml_thread_count"]).value = 4
    found, _ = pieces(0, 10, 1, loaded.addresses["polyml_parallel"])
    assert len(found) == 4


def test_the_llvm_openmp_interface_compiles() -> None:
    class Kmp:
        interface = "kmp"

    text = emit_threads(Kmp())  # type: ignore[arg-type]  # only the interface is asked for
    globals_ = "".join(f"@{name} = global i8 0\n" for name in ("polyml_plain_threads", "polyml_openmp_used"))
    assert compile_plainly(f"{globals_}@polyml_thread_count = global i32 1\n{text}")
    assert "__kmpc_fork_call" in text
    assert "GOMP_parallel" not in text


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYML_NUM_THREADS", raising=False)
    assert thread_count() == available_cores()
    monkeypatch.setenv("POLYML_NUM_THREADS", "5")
    assert thread_count() == 5
    with overridden(threads=2):
        assert thread_count() == 2
    monkeypatch.setenv("POLYML_NUM_THREADS", "0")
    with pytest.raises(PolymlError, match="threads = 0"):
        thread_count()


FORK = """
import ctypes, os, sys, threading
from polyml.runtime.support import support
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
call = PARALLEL(support().symbols["polyml_parallel"])
support().set_threads(3)
def run():
    seen = []
    call(BODY(lambda ctx, lo, hi: seen.extend(range(lo, hi))), 0, 0, 100, 1)
    return sorted(seen) == list(range(100))
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
_, status = os.waitpid(child, 0)
assert run()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_parallel_loops() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_openmp_can_be_refused() -> None:
    script = "from polyml.runtime.support import support; assert support().openmp is None"
    environment = {**os.environ, "POLYML_OPENMP": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert find_openmp() is find_openmp()

"""polyml_parallel: every iteration runs once, on the pool or an OpenMP runtime, whoever else calls it, and after a fork too. The pool itself: test_pool.py."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from polyml.errors import PolymlError
from polyml.options import overridden
from polyml.runtime.load import compile_plainly
from polyml.runtime.support.module import Support, load_support, parallel_limited
from polyml.runtime.threads.parallel import emit_threads, find_openmp, openmp_runtime, thread_count
from polyml.target import available_cores

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
Parallel = Callable[..., None]


def pieces(lower: int, upper: int, step: int, parallel: Parallel) -> tuple[list[tuple[int, int]], set[int]]:
    """The (lo, hi) that the bodies got, in order, and the threads that ran them."""
    found: list[tuple[int, int]] = []
    runners: set[int] = set()

    def body(ctx: int, lo: int, hi: int) -> None:
        assert ctx == 77
        found.append((lo, hi))
        runners.add(threading.get_native_id())

    parallel(BODY(body), 77, lower, upper, step)
    return sorted(found), runners


def parallel_of(made: Support) -> Parallel:
    return PARALLEL(made.symbols["polyml_parallel"])


@pytest.fixture(params=["pool", "openmp", "openmp avoided"], scope="module")
def three_threads(request: pytest.FixtureRequest) -> Iterator[Support]:
    openmp = openmp_runtime() if "openmp" in request.param else None
    if openmp is None and request.param != "pool":
        pytest.skip("there is no OpenMP runtime")
    made = load_support(openmp)
    made.set_threads(3)
    made.avoid_openmp("avoided" in request.param)
    yield made
    made.avoid_openmp(False)


@pytest.mark.parametrize("step", [1, 4, 7])
@pytest.mark.parametrize(("lower", "upper"), [(0, 100), (-5, 6), (3, 4), (0, 2), (10, 10), (10, 3), (0, 29)])
def test_pieces_cover_the_range_once_and_on_its_grid(three_threads: Support, lower: int, upper: int, step: int) -> None:
    found, runners = pieces(lower, upper, step, parallel_of(three_threads))
    iterations = [i for lo, hi in found for i in range(lo, hi, step)]
    assert iterations == list(range(lower, upper, step))
    assert all(lower <= lo < hi <= upper and (lo - lower) % step == 0 for lo, hi in found)
    assert len(runners) <= 3


def test_pieces_run_at_once(three_threads: Support) -> None:
    barrier = threading.Barrier(3, timeout=20)
    parallel_of(three_threads)(BODY(lambda ctx, lo, hi: barrier.wait() and None), 0, 0, 3, 1)
    assert not barrier.broken


def test_one_thread_calls_the_body_directly(three_threads: Support) -> None:
    three_threads.set_threads(1)
    found, runners = pieces(0, 100, 3, parallel_of(three_threads))
    three_threads.set_threads(3)
    assert found == [(0, 100)]
    assert runners == {threading.get_native_id()}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_kernel_may_use_fewer_or_more_threads(threads: int) -> None:
    address, _ = parallel_limited(threads)
    barrier = threading.Barrier(threads, timeout=20)
    runners: set[int] = set()

    def body(ctx: int, lo: int, hi: int) -> None:
        runners.add(threading.get_native_id())
        if lo < threads:
            barrier.wait()

    PARALLEL(address)(BODY(body), 0, 0, threads, 1)
    assert len(runners) == threads


def test_a_parallel_loop_inside_another(three_threads: Support) -> None:
    seen: list[int] = []
    inner = parallel_of(three_threads)
    one = BODY(lambda ctx, lo, hi: seen.extend(range(ctx + lo, ctx + hi)))
    outer = BODY(lambda ctx, lo, hi: [inner(one, 10 * i, 1, 6, 1) for i in range(lo, hi)] and None)
    inner(outer, 0, 1, 5, 1)
    assert sorted(seen) == [10 * i + j for i in range(1, 5) for j in range(1, 6)]


def test_many_callers_at_once(three_threads: Support) -> None:
    wrong: list[object] = []
    parallel = parallel_of(three_threads)

    def caller() -> None:
        for _ in range(20):
            found, _ = pieces(0, 50, 2, parallel)
            if sorted(i for lo, hi in found for i in range(lo, hi, 2)) != list(range(0, 50, 2)):
                wrong.append(found)

    team = [threading.Thread(target=caller) for _ in range(10)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_the_llvm_openmp_interface_compiles() -> None:
    class Kmp:
        interface = "kmp"

    text = emit_threads(Kmp())  # type: ignore[arg-type]  # only the interface is asked for
    globals_ = "".join(f"@{name} = global i8 0\n" for name in ("polyml_avoid_openmp", "polyml_openmp_used"))
    numbers = "".join(f"@{name} = global i32 1\n" for name in ("polyml_thread_count", "polyml_spins"))
    assert compile_plainly(f"{globals_}{numbers}{text}")
    assert "__kmpc_fork_call" in text
    assert "GOMP_parallel" not in text


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYML_NUM_THREADS", raising=False)
    assert thread_count() == available_cores()
    monkeypatch.setenv("POLYML_NUM_THREADS", "5")
    assert thread_count() == 5
    with overridden(threads=2):
        assert thread_count() == 5, "of the process, whoever comes first"
    monkeypatch.setenv("POLYML_NUM_THREADS", "0")
    with pytest.raises(PolymlError, match="POLYML_NUM_THREADS = 0"):
        thread_count()


FORK = """
import ctypes, os, sys, threading
from polyml.runtime.support.module import support
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
@pytest.mark.parametrize("runtime", ["pool", "openmp"])
def test_a_forked_child_runs_parallel_loops(runtime: str) -> None:
    if runtime == "openmp" and openmp_runtime() is None:
        pytest.skip("there is no OpenMP runtime")
    done = run_script(FORK, POLYML_THREADS=runtime)
    assert done.returncode == 0, done.stderr


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, **environment}, timeout=60, check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_the_pool_is_the_default_and_openmp_a_choice() -> None:
    script = "from polyml.runtime.support.module import support; print(support().openmp)"
    assert run_script(script, POLYML_THREADS="").stdout == "None\n"
    if openmp_runtime() is not None:
        assert run_script(script, POLYML_THREADS="openmp").stdout not in ("None\n", "")
    missing = run_script(script, POLYML_THREADS="openmp", POLYML_OPENMP="no such library")
    assert "no OpenMP runtime was found" in missing.stderr
    assert "POLYML_THREADS = tbb" in run_script(script, POLYML_THREADS="tbb").stderr
    assert find_openmp() is find_openmp()

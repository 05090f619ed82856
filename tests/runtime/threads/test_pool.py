"""The pool of threads: many loops from many callers, workers that are late or busy, forks, one core, the end of the process."""

import ctypes
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.machine import Loaded, assembly, load_object, machine_of
from polyml.runtime.load import compile_plainly
from polyml.runtime.support.module import Support, load_support
from polyml.runtime.threads.pool import emit_pool
from polyml.target import Target

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

# times loops of `iterations` iterations, each of which adds its number to the sum; with depth 2 a loop of 3 stands around each.
LOOPS = """
declare void @polyml_parallel(ptr, ptr, i64, i64, i64)
%context = type { i64, i64 }

define internal void @add(ptr %c, i64 %lo, i64 %hi) {
  br label %next
next:
  %i = phi i64 [%lo, %0], [%i.next, %next]
  %sum = phi i64 [0, %0], [%sum.next, %next]
  %sum.next = add i64 %sum, %i
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %hi
  br i1 %more, label %next, label %done
done:
  %old = atomicrmw add ptr %c, i64 %sum.next monotonic
  ret void
}

define internal void @around(ptr %c, i64 %lo, i64 %hi) {
  %n.p = getelementptr %context, ptr %c, i64 0, i32 1
  %n = load i64, ptr %n.p
  br label %next
next:
  %i = phi i64 [%lo, %0], [%i.next, %next]
  call void @polyml_parallel(ptr @add, ptr %c, i64 0, i64 %n, i64 1)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %hi
  br i1 %more, label %next, label %done
done:
  ret void
}

define i64 @loops(i64 %times, i64 %iterations, i64 %depth) {
entry:
  %c = alloca %context
  store i64 0, ptr %c
  %n.p = getelementptr %context, ptr %c, i64 0, i32 1
  store i64 %iterations, ptr %n.p
  %nested = icmp eq i64 %depth, 2
  br label %next
next:
  %k = phi i64 [0, %entry], [%k.next, %ran]
  br i1 %nested, label %two, label %one
one:
  call void @polyml_parallel(ptr @add, ptr %c, i64 0, i64 %iterations, i64 1)
  br label %ran
two:
  call void @polyml_parallel(ptr @around, ptr %c, i64 0, i64 3, i64 1)
  br label %ran
ran:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %times
  br i1 %more, label %next, label %done
done:
  %sum = load i64, ptr %c
  ret i64 %sum
}
"""


KEPT: list[Loaded] = []
"""Code in which workers sleep."""


@functools.cache
def pool() -> Support:
    made = load_support(None)
    made.set_threads(3)
    return made


@functools.cache
def loops() -> tuple[Callable[[int, int, int], int], Loaded]:
    loaded = load_object(compile_plainly(LOOPS), ("loops",), pool().symbols)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(loaded.addresses["loops"]), loaded


def parallel(body: Callable[[int, int], None], upper: int) -> None:
    PARALLEL(pool().symbols["polyml_parallel"])(BODY(lambda ctx, lo, hi: body(lo, hi)), None, 0, upper, 1)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("depth", [1, 2])
def test_many_loops_from_many_threads(threads: int, depth: int) -> None:
    pool().set_threads(threads)
    run, _ = loops()
    sums: dict[int, int] = {}

    def caller(number: int) -> None:
        sums[number] = run(300, 30 + number, depth)

    team = [threading.Thread(target=caller, args=(number,)) for number in range(10)]  # more than there are slots
    for member in team:
        member.start()
    for member in team:
        member.join()
    pool().set_threads(3)
    each = 300 * (3 if depth == 2 else 1)
    assert sums == {k: each * (30 + k) * (29 + k) // 2 for k in range(10)}


def test_a_busy_worker_delays_nobody_else() -> None:
    pool().set_threads(2)
    in_worker, release = threading.Event(), threading.Event()
    taken: list[int] = []

    def wait_in_worker(lo: int, hi: int) -> None:
        if threading.get_native_id() in callers:
            in_worker.wait(20)
        else:
            held.add(threading.get_native_id())
            in_worker.set()
            release.wait(20)

    callers: set[int] = set()
    held: set[int] = set()

    def first_caller() -> None:
        callers.add(threading.get_native_id())
        parallel(wait_in_worker, 2)

    other = threading.Thread(target=first_caller)
    other.start()
    assert in_worker.wait(20)
    parallel(lambda lo, hi: taken.append(threading.get_native_id()), 64)
    assert len(taken) > 0
    assert held.isdisjoint(taken)  # done while the worker is held up
    assert other.is_alive()
    release.set()
    other.join()
    pool().set_threads(3)


def test_a_thread_that_ends_first_takes_of_the_others() -> None:
    pool().set_threads(2)
    runners: dict[int, list[int]] = {}
    both = threading.Barrier(2, timeout=20)

    def body(lo: int, hi: int) -> None:
        mine = runners.setdefault(threading.get_native_id(), [])
        if not mine:
            both.wait()
        mine.extend(range(lo, hi))
        if threading.get_native_id() != caller:
            time.sleep(0.2)

    caller = threading.get_native_id()
    parallel(body, 64)
    pool().set_threads(3)
    (helper,) = (taken for thread, taken in runners.items() if thread != caller)
    assert sorted([*runners[caller], *helper]) == list(range(64))
    assert len(runners[caller]) > 32  # more than its own half


def test_idle_workers_sleep() -> None:
    loops()[0](10, 100, 1)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("late", ["caller", "worker"])
def test_who_waits_for_a_long_piece_sleeps_in_the_end(late: str) -> None:
    pool().set_threads(2)
    both = threading.Barrier(2, timeout=20)
    caller = threading.get_native_id()

    def body(lo: int, hi: int) -> None:
        both.wait()
        if (threading.get_native_id() == caller) == (late == "caller"):
            time.sleep(0.3)

    before = time.process_time()
    parallel(body, 2)
    pool().set_threads(3)
    assert time.process_time() - before < 0.1


def test_waiting_on_condition_variables() -> None:
    """What systems without futexes use."""
    text = f"@polyml_spins = global i32 0\n{emit_pool(Target.host().architecture, linux=False)}" + (
        "define void @run(ptr %body, i64 %upper) {\n"
        "  call void @pool_run(ptr %body, ptr null, i64 0, i64 %upper, i64 1, i64 %upper, i64 3)\n  ret void\n}\n"
    )
    loaded = load_object(compile_plainly(text), ("run",), {})
    KEPT.append(loaded)
    run = ctypes.CFUNCTYPE(None, BODY, ctypes.c_int64)(loaded.addresses["run"])
    for _ in range(50):
        barrier = threading.Barrier(3, timeout=20)
        seen: list[int] = []
        run(BODY(lambda ctx, lo, hi, barrier=barrier: barrier.wait() and None), 3)
        run(BODY(lambda ctx, lo, hi, seen=seen: seen.extend(range(lo, hi))), 40)
        assert sorted(seen) == list(range(40))


@pytest.mark.parametrize(
    ("target", "linux", "waits"),
    [("aarch64", True, "isb"), ("apple-m1", False, "isb"), ("riscv64", True, ""), ("x86-64", True, "pause")],
)
def test_other_machines(target: str, linux: bool, waits: str) -> None:
    machine = machine_of(Target(target))
    text = f"@polyml_spins = global i32 0\n{emit_pool(Target(target).architecture, linux=linux)}"
    code = assembly(f"{text}\ndefine ptr @kept() {{\n  ret ptr @pool_run\n}}\n", machine)
    assert waits in code
    assert ("syscall" in code) == linux
    assert ("pthread_cond_wait" in code) != linux


def test_reductions_are_the_same_bits_every_time() -> None:
    total = polyml.einsum('def f(x: f32["N"]):\n    s = sum[i](x[i] * x[i])\n    return s\n', threads=3)
    x = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    assert len({float(total(x)) for _ in range(30)}) == 1


KERNELS = """
import os, sys, threading, time
import numpy as np
import polyml
rows = polyml.einsum('''
def rows(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    s[n] = sum[k](exp(x[n, k] - m[n]))
    y[n] = log(s[n]) + m[n]
    return y
''', threads=3)
x = np.random.default_rng(0).standard_normal((700, 300), dtype=np.float32)
want = rows(x)
def right(times=30):
    return all(np.array_equal(rows(x), want) for _ in range(times))
"""

FORKS = (
    KERNELS
    + """
stop = threading.Event()
def busy():
    while not stop.is_set():
        rows(x)
others = [threading.Thread(target=busy) for _ in range(3)]
for other in others:
    other.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if right() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right()
stop.set()
for other in others:
    other.join()
"""
)

ONE_CORE = (
    """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
"""
    + KERNELS
    + """
from polyml.runtime.support.module import support
from polyml.runtime.threads.parallel import spins
assert spins(1) == spins(2) == 0
assert right()
support().set_threads(4)
assert right()
"""
)

APART = (
    KERNELS
    + """
for _ in range(20):
    assert right(3)
    time.sleep(0.005)
mine = os.sched_getaffinity(0)
threads = [os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
assert all(cpus and cpus <= mine for cpus in threads), threads
assert any(len(cpus) == len(mine) - 1 for cpus in threads) == (len(mine) > 1), threads
workers = [int(t) for t in os.listdir("/proc/self/task") if os.sched_getaffinity(int(t)) != mine]
for worker in workers:
    os.sched_setaffinity(worker, mine)
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if right(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert all(os.sched_getaffinity(worker) == mine for worker in workers), "a child's workers are others"
os.sched_setaffinity(0, {max(mine)})
assert right()
os.sched_setaffinity(0, mine)
assert right()
"""
)

ENDS_AT_ONCE = (
    KERNELS
    + """
threading.Thread(target=lambda: [rows(x) for _ in range(10**9)], daemon=True).start()
assert right(3)
time.sleep(0.02)
"""
)


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_others_call() -> None:
    run(FORKS)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_one_core() -> None:
    run(ONE_CORE)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_workers_that_are_woken_are_kept_from_the_cpu_of_their_caller() -> None:
    run(APART)


def test_the_process_ends_while_workers_work() -> None:
    run(ENDS_AT_ONCE)

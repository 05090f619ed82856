"""Many threads, many processes, forks, kills, exits and thousands of calls: results stay right, memory stays bounded, nothing hangs."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.errors import SubscriptError
from tests.runtime.family import PROGRAMS, check, text

WORKER = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from tests.runtime.family import PROGRAMS, check, text
import polyml
start = float(sys.argv[2])
time.sleep(max(0.0, start - time.time()))
for k in range(int(sys.argv[3])):
    check(polyml.einsum(text(k)), k)
print("right")
"""


MANY = [pytest.param(PROGRAMS, id="some"), pytest.param(100, id="a hundred", marks=pytest.mark.slow)]
"""How many kernels: some in every run, a hundred in the slow one."""


def start_workers(
    count: int, cache: Path, programs: int, wait: float, *, warnings: str = "error", before: str = ""
) -> list[subprocess.Popen[str]]:
    """Processes that compile, or find, the same programs at the same time. before: what they do first."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "POLYML_CACHE": str(cache)}
    code = before + WORKER
    arguments = [sys.executable, "-W", warnings, "-c", code, str(root), str(time.time() + wait), str(programs)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(arguments, env=environment, **pipes) for _ in range(count)]


def finish(worker: subprocess.Popen[str], *, killed: bool = False) -> None:
    out, err = worker.communicate(timeout=120)
    assert killed or (worker.returncode, out) == (0, "right\n"), err


@pytest.mark.parametrize(("processes", "programs"), [(3, PROGRAMS), pytest.param(8, 100, marks=pytest.mark.slow)])
def test_processes_on_a_cold_cache(processes: int, programs: int, tmp_path: Path) -> None:
    for worker in start_workers(processes, tmp_path / "cache", programs, wait=1.5):
        finish(worker)
    files = list((tmp_path / "cache").iterdir())
    assert len(files) == programs + 1, "one per program, and the functions that kernels share"
    assert all(f.suffix == ".kernel" for f in files)


def test_killed_processes_leave_a_usable_cache(tmp_path: Path) -> None:
    workers = start_workers(4, tmp_path / "cache", PROGRAMS, wait=0.5)
    for k, worker in enumerate(workers):
        time.sleep(0.3 if k == 0 else 0.12)
        worker.send_signal(signal.SIGKILL)
    for worker in workers:
        finish(worker, killed=True)
    (last,) = start_workers(1, tmp_path / "cache", PROGRAMS, wait=0)
    finish(last)  # a torn file would be a warning, which is an error there


@pytest.mark.slow
def test_a_hundred_kills_and_a_hundred_kernels(tmp_path: Path) -> None:
    for round_ in range(25):
        workers = start_workers(4, tmp_path / "cache", 100, wait=0.5)
        time.sleep(0.8 + 0.07 * round_)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            finish(worker, killed=True)
    for worker in start_workers(8, tmp_path / "cache", 100, wait=1):
        finish(worker)
    assert sum(f.suffix == ".kernel" for f in (tmp_path / "cache").iterdir()) == 101


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs rlimits")
def test_a_disk_that_fills_up_in_the_middle_of_a_file(tmp_path: Path) -> None:
    (worker,) = start_workers(1, tmp_path / "cache", 2, wait=0, warnings="always", before=FULL)
    out, err = worker.communicate(timeout=100)
    assert (worker.returncode, out) == (0, "right\n"), err
    assert err.count("File too large") == 1, err
    assert all(f.suffix == ".kernel" and f.stat().st_size < 5_000 for f in (tmp_path / "cache").iterdir())
    (last,) = start_workers(1, tmp_path / "cache", 2, wait=0)
    finish(last)


@pytest.mark.parametrize(
    ("seconds", "processes", "programs"), [(1, 2, 2), pytest.param(30, 3, 20, marks=pytest.mark.slow)]
)
def test_files_that_are_damaged_while_they_are_used(
    seconds: float, processes: int, programs: int, tmp_path: Path
) -> None:
    end, dice, harmed = time.monotonic() + seconds, random.Random(0), 0
    workers: list[subprocess.Popen[str]] = []
    while (more := time.monotonic() < end or harmed < 4) or workers:
        if more and not workers:
            workers = start_workers(processes, tmp_path / "cache", programs, wait=0, warnings="ignore")
        files = sorted((tmp_path / "cache").glob("*.kernel"))
        if files:
            with contextlib.suppress(OSError), dice.choice(files).open("r+b") as file:  # as a failing disk would
                size = file.seek(0, os.SEEK_END)
                if dice.random() < 0.3:
                    file.truncate(dice.randrange(size + 1))
                else:
                    file.seek(dice.randrange(max(1, size)))
                    file.write(dice.randbytes(8))
                harmed += 1
        time.sleep(0.02)
        for worker in [w for w in workers if w.poll() is not None]:
            workers.remove(worker)
            finish(worker)


@pytest.mark.parametrize("programs", MANY)
def test_eight_threads_on_a_cold_cache(programs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path / "cache"))
    shared = [polyml.einsum(text(k)) for k in range(programs)]
    wrong: list[BaseException] = []
    barrier = threading.Barrier(8, timeout=30)

    def work(seed: int) -> None:
        try:
            barrier.wait()
            for k in range(programs):
                number = (k + seed) % programs
                for n in (2, 4):
                    check(shared[number], number, n)
                check(polyml.einsum(text(number)), number)
        except BaseException as error:
            wrong.append(error)

    team = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for member in team:
        member.start()
    for member in team:
        member.join(120)
    assert not wrong
    assert [len(f.kernels) for f in shared] == [2] * programs


SCRIPTS = {
    "fork": """
check(f, 1)
child = os.fork()
check(f, 1)
check(f, 1, 9)
check(polyml.einsum(text(2)), 2)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    "fork while a thread holds a lock": """
import signal
from polyml import nesting
from polyml.codegen.llvm.machine import LLVM_LOCK
from polyml.einsum_frontend import python_parser
from polyml.runtime.dispatch import COMPILE_LOCK
check(f, 1)
def hold(lock):
    with lock:
        held.set()
        time.sleep(0.1)
for lock in (COMPILE_LOCK, LLVM_LOCK, python_parser._lock, nesting._lock):
    held = threading.Event()
    threading.Thread(target=hold, args=(lock,)).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        check(polyml.einsum(text(2)), 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, lock
""",
    "exit with live kernels, and a call at exit": """
import atexit
keep = [polyml.einsum(text(k)) for k in range(3)]
for k, g in enumerate(keep):
    check(g, k)
import builtins
builtins.kept_for_ever = keep
class Last:
    def __del__(self):
        check(keep[0], 0)
last = Last()
sys.modules["kept"] = last
check(f, 1)
atexit.register(check, f, 1)
""",
    "exit while a thread calls": """
def call():
    while True:
        check(f, 1)
check(f, 1)
threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)
""",
    "exit while a thread compiles": """
def make():
    for k in range(1000):
        check(polyml.einsum(text(k)), k)
threading.Thread(target=make, daemon=True).start()
time.sleep(0.4)
""",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", SCRIPTS)
def test_forks_and_exits(name: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    start = (
        f"import os, sys, threading, time\nsys.path.insert(0, {str(root)!r})\nimport polyml\n"
        "from tests.runtime.family import check, text\nf = polyml.einsum(text(1))\n"
    )
    environment = {**os.environ, "POLYML_CACHE": str(tmp_path), "POLYML_NUM_THREADS": "2"}
    for _ in range(2 if name == "fork" else 1):
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", start + SCRIPTS[name]],
            env=environment, timeout=100, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_calls_leak_nothing() -> None:
    f = polyml.einsum(text(1))
    g = polyml.einsum('def g(t: f32["V"], ids: i64["N"]):\n    y[n] = t[ids[n]]\n    return y\n', dynamic=True)
    x, w, out = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.ones(7, np.float32)
    good, bad = np.arange(7), np.full(7, 99)

    def round_() -> None:
        for _ in range(100):
            f(x, w)
            f(x[::2], w)
            f(x=x, w=w)
            g(out, good)
            g(out, good, out=out)
            for wrong in (lambda: g(out, bad), lambda: f(x), lambda: f(x, w[:2])):
                with pytest.raises((SubscriptError, polyml.PolymlError)):
                    wrong()

    round_()
    gc.collect()
    before, references = resident(), [sys.getrefcount(thing) for thing in (x, w, out, x.dtype, None)]
    for _ in range(5):
        round_()
    gc.collect()
    after, later = resident(), [sys.getrefcount(thing) for thing in (x, w, out, x.dtype, None)]
    assert after - before < 1_000_000
    assert all(abs(a - b) < 100 for a, b in zip(references, later, strict=True))


def bytes_per_compilation(count: int) -> dict[str, float]:
    """What stays of each of so many compilations, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.leaks", "--compiles", str(count)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], timeout=900, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"(-?\d+) bytes resident, (-?\d+) bytes of heap, (-?[\d.]+) Python blocks", done.stdout)
    assert found is not None, done.stdout
    return dict(zip(("resident", "heap", "blocks"), map(float, found.groups()), strict=True))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("count", [40, pytest.param(1200, marks=pytest.mark.slow)])
def test_kernels_are_unloaded(count: int) -> None:
    """islpy keeps some 45 KB of each: 32 bytes of every argument that isl takes over; polyml and LLVM keep nothing (docs/testing.md)."""
    found = bytes_per_compilation(count)
    assert found["resident"] < (60_000 if count > 1000 else 150_000)
    assert found["heap"] < 75_000
    assert found["blocks"] < (1 if count > 1000 else 50)


HOLES = """
import ctypes, mmap
import numpy as np
import polyml

f = polyml.einsum('''
def f(x: f32["N K"], w: f32["K M"]):
    y[n, m] = tanh(x[n, k] * w[k, m])
    return y
''')

def check(n):
    x, w = np.full((n, 3), 0.5, np.float32), np.full((3, 4), 0.25, np.float32)
    assert np.allclose(f(x, w), np.tanh(x @ w))

check(1)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def reserve(size):
    return libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)  # without any access: counted nowhere
low = reserve(1 << 36)  # everything above it is taken, but for single pages: room for constants, none for code
size, taken = 1 << 36, []
while size >= mmap.PAGESIZE:
    while (start := reserve(size)) > low:
        taken.append((start, size))
    libc.munmap(start, size)
    size //= 2
for start, size in taken:
    if 3 * mmap.PAGESIZE <= size <= 1 << 20:
        libc.munmap(start + mmap.PAGESIZE, mmap.PAGESIZE)
for n in range(2, 8):
    check(n)
print("right")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills the address space as Linux gives it away")
def test_an_address_space_full_of_holes() -> None:
    # Code and its constants have to lie within 2 GB of each other, wherever there is room.
    environment = {**os.environ, "POLYML_CACHE": "0"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    finish(subprocess.Popen([sys.executable, "-W", "error", "-c", HOLES], env=environment, **pipes))

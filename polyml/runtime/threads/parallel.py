"""`polyml_parallel`: what parallel loops of emitted code call, on polyml's own pool of threads or on an OpenMP runtime.

    void polyml_parallel(ptr body, ptr ctx, i64 lower, i64 upper, i64 step)

calls `body(ctx, lo, hi)` on several threads with disjoint pieces of `lower, lower + step, ..` below `upper`: `lo` is a multiple of `step` away from `lower`. With one thread or
one iteration it calls the body directly. `polyml_parallel_limited` takes the most threads to use as a further i64.

The pool (polyml/runtime/threads/pool.py) is the default: a team of OpenMP's begins together, so that a loop waits milliseconds for a worker whose core something else uses, such as the
spinning pool of another library. POLYML_THREADS=openmp takes an OpenMP runtime, whose threads are shared with other users of the same library; libgomp hangs in the
child of a fork once its parent has used it, and there the pool takes over. Source: libgomp ABI (GOMP_parallel), LLVM OpenMP runtime (__kmpc_fork_call).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from polyml.errors import PolymlError
from polyml.options import of_process
from polyml.records import dataclass
from polyml.runtime.threads.pool import emit_pool
from polyml.target import Target, available_cores

__all__ = ["OpenMP", "emit_threads", "find_openmp", "openmp_runtime", "spins", "thread_count"]

SPINS = 1000
"""How often a thread looks for work, or for the end of others', before it sleeps: some 40 us, what waking it takes."""


@dataclass(frozen=True, slots=True)
class OpenMP:
    """A loaded OpenMP runtime. interface: which entry it is used through. fork_safe: a forked child may use it again."""

    path: str
    interface: Literal["gomp", "kmp"]
    fork_safe: bool
    library: ctypes.CDLL

    def __str__(self) -> str:
        return f"{self.path} ({'GOMP_parallel' if self.interface == 'gomp' else '__kmpc_fork_call'})"


def thread_count() -> int:
    """Threads of a parallel loop where no option says otherwise: POLYML_NUM_THREADS, else the cores that this process may use."""
    asked = of_process("threads")
    return asked if isinstance(asked, int) else available_cores()


def spins(threads: int) -> int:
    """How often to look before sleeping, with so many threads: where they have no cores of their own, looking keeps others from working."""
    cores = available_cores()
    return SPINS if cores > 1 and threads <= cores else 0


@functools.cache
def find_openmp() -> OpenMP | None:
    """The OpenMP runtime to use where POLYML_THREADS=openmp asks for one; None: the pool.

    Raises:
        PolymlError: POLYML_THREADS is something else, or there is no OpenMP runtime.
    """
    chosen = os.environ.get("POLYML_THREADS", "") or "pool"
    if chosen not in ("pool", "openmp"):
        raise PolymlError(f"POLYML_THREADS = {chosen}: it is pool or openmp", hint="unset it: pool is the default")
    found = openmp_runtime() if chosen == "openmp" else None
    if chosen == "openmp" and found is None:
        raise PolymlError(
            "POLYML_THREADS = openmp: no OpenMP runtime was found",
            hint="install libgomp (Linux: package libgomp1) or libomp (macOS: brew install libomp), or name it in POLYML_OPENMP",
        )
    return found


def openmp_runtime() -> OpenMP | None:
    """What POLYML_OPENMP names, else an OpenMP runtime that the process has loaded, else one that can be loaded."""
    asked = os.environ.get("POLYML_OPENMP", "")
    for name in [asked] if asked else _candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        kmp = hasattr(library, "__kmpc_fork_call")
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            return OpenMP(name, "gomp", fork_safe=kmp, library=library)
        if kmp and hasattr(library, "omp_get_thread_num"):
            return OpenMP(name, "kmp", fork_safe=True, library=library)
    return None


def _candidates() -> Iterator[str]:
    """Names to try, those that cost nothing to find first."""
    yield from _loaded_libraries()
    if sys.platform == "darwin":
        yield from (
            "libomp.dylib",
            "/opt/homebrew/opt/libomp/lib/libomp.dylib",
            "/usr/local/opt/libomp/lib/libomp.dylib",
        )
        return
    yield from ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so")
    for name in ("gomp", "omp", "iomp5"):
        found = ctypes.util.find_library(name)  # starts a process
        if found is not None:
            yield found


def _loaded_libraries() -> list[str]:
    """Paths of OpenMP libraries that are mapped into this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/"))
    return [path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))]


def emit_threads(openmp: OpenMP | None) -> str:
    """The text of the functions above, for the support module, and of the pool. They use `@polyml_thread_count`, `@polyml_spins` (i32) and `@polyml_avoid_openmp` (i8) of that
    module, and set its `@polyml_openmp_used` (i8)."""
    pool = emit_pool(Target.host().architecture, linux=sys.platform.startswith("linux"))
    if openmp is None:
        return pool + _ITERATIONS + _PARALLEL.replace("{share}", _ON_POOL)
    if openmp.interface == "gomp":
        outside = "declare void @GOMP_parallel(ptr, ptr, i32, i32)\n" + _OPENMP_MEMBER
        start = "call void @GOMP_parallel(ptr @openmp_member, ptr %job, i32 %team, i32 0)"
    else:
        outside = _KMP_MEMBER + _OPENMP_MEMBER
        start = "call void @kmp_team(ptr %job, i32 %team)"
    share = _ON_OPENMP.replace("{start}", start).replace("{pool}", _ON_POOL)
    return pool + _ITERATIONS + _MEMBER + outside + _PARALLEL.replace("{share}", share)


_ITERATIONS = """
define internal i64 @iterations(i64 %lower, i64 %upper, i64 %step) {
  %span = sub i64 %upper, %lower
  %some = icmp sgt i64 %span, 0
  %most = add i64 %step, -1
  %up = add i64 %span, %most
  %count = sdiv i64 %up, %step
  %result = select i1 %some, i64 %count, i64 0
  ret i64 %result
}
"""

# %job: body, ctx, lower, upper, step. Member t of n runs iterations [t*q + min(t, r), ..) of q*n + r.
_MEMBER = """
%polyml.job = type { ptr, ptr, i64, i64, i64 }

define internal void @member(ptr %job, i64 %t, i64 %n) {
  %body = load ptr, ptr %job
  %ctx.p = getelementptr %polyml.job, ptr %job, i32 0, i32 1
  %ctx = load ptr, ptr %ctx.p
  %lower.p = getelementptr %polyml.job, ptr %job, i32 0, i32 2
  %lower = load i64, ptr %lower.p
  %upper.p = getelementptr %polyml.job, ptr %job, i32 0, i32 3
  %upper = load i64, ptr %upper.p
  %step.p = getelementptr %polyml.job, ptr %job, i32 0, i32 4
  %step = load i64, ptr %step.p
  %total = call i64 @iterations(i64 %lower, i64 %upper, i64 %step)
  %q = udiv i64 %total, %n
  %r = urem i64 %total, %n
  %early = icmp ult i64 %t, %r
  %extra = select i1 %early, i64 %t, i64 %r
  %whole = mul i64 %t, %q
  %first = add i64 %whole, %extra
  %one = zext i1 %early to i64
  %count = add i64 %q, %one
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %work
work:
  %skipped = mul i64 %first, %step
  %lo = add i64 %lower, %skipped
  %size = mul i64 %count, %step
  %end = add i64 %lo, %size
  %over = icmp slt i64 %upper, %end
  %hi = select i1 %over, i64 %upper, i64 %end
  call void %body(ptr %ctx, i64 %lo, i64 %hi)
  br label %done
done:
  ret void
}
"""

_OPENMP_MEMBER = """
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @openmp_member(ptr %job) {
  %t = call i32 @omp_get_thread_num()
  %n = call i32 @omp_get_num_threads()
  %t.wide = zext i32 %t to i64
  %n.wide = zext i32 %n to i64
  call void @member(ptr %job, i64 %t.wide, i64 %n.wide)
  ret void
}
"""

# ident_t: reserved, flags (2: KMP_IDENT_KMPC), reserved, reserved, ";file;function;line;line;;"
_KMP_MEMBER = """
@kmp_text = private constant [23 x i8] c";unknown;unknown;0;0;;\\00"
@kmp_ident = private global { i32, i32, i32, i32, ptr } { i32 0, i32 2, i32 0, i32 22, ptr @kmp_text }
declare void @__kmpc_fork_call(ptr, i32, ptr, ...)
declare i32 @__kmpc_global_thread_num(ptr)
declare void @__kmpc_push_num_threads(ptr, i32, i32)

define internal void @kmp_member(ptr %global, ptr %bound, ptr %job) {
  call void @openmp_member(ptr %job)
  ret void
}

define internal void @kmp_team(ptr %job, i32 %team) {
  %self = call i32 @__kmpc_global_thread_num(ptr @kmp_ident)
  call void @__kmpc_push_num_threads(ptr @kmp_ident, i32 %self, i32 %team)
  call void (ptr, i32, ptr, ...) @__kmpc_fork_call(ptr @kmp_ident, i32 1, ptr @kmp_member, ptr %job)
  ret void
}
"""

_ON_POOL = """\
  call void @pool_run(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 %total, i64 %n)
"""

_ON_OPENMP = """\
  %avoid = load i8, ptr @polyml_avoid_openmp
  %use.pool = icmp ne i8 %avoid, 0
  br i1 %use.pool, label %pool, label %openmp
pool:
{pool}  ret void
openmp:
  %job = alloca %polyml.job
  store ptr %body, ptr %job
  %ctx.p = getelementptr %polyml.job, ptr %job, i32 0, i32 1
  store ptr %ctx, ptr %ctx.p
  %lower.p = getelementptr %polyml.job, ptr %job, i32 0, i32 2
  store i64 %lower, ptr %lower.p
  %upper.p = getelementptr %polyml.job, ptr %job, i32 0, i32 3
  store i64 %upper, ptr %upper.p
  %step.p = getelementptr %polyml.job, ptr %job, i32 0, i32 4
  store i64 %step, ptr %step.p
  %team = trunc i64 %n to i32
  store i8 1, ptr @polyml_openmp_used
  {start}
"""

_PARALLEL = """
define void @polyml_parallel(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step) {
  call void @polyml_parallel_limited(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 0)
  ret void
}

define void @polyml_parallel_limited(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 %limit) {
  %default = load i32, ptr @polyml_thread_count
  %default.wide = zext i32 %default to i64
  %limited = icmp sgt i64 %limit, 0
  %threads = select i1 %limited, i64 %limit, i64 %default.wide
  %total = call i64 @iterations(i64 %lower, i64 %upper, i64 %step)
  %few = icmp slt i64 %total, %threads
  %n = select i1 %few, i64 %total, i64 %threads
  %alone = icmp sle i64 %n, 1
  br i1 %alone, label %direct, label %share
direct:
  %any = icmp sgt i64 %total, 0
  br i1 %any, label %run, label %done
run:
  call void %body(ptr %ctx, i64 %lower, i64 %upper)
  br label %done
done:
  ret void
share:
{share}  ret void
}
"""

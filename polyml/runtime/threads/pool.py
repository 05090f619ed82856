"""The threads of parallel loops, as LLVM IR: a pool whose caller works at once and waits for nobody who has not begun.

A parallel loop of n threads is cut into n ranges of iterations, one for each thread: the caller has range 0, worker p range p, so that a thread meets the same part of an array
in loop after loop. A thread claims a quarter of what is left of its range at a time, and where its own is used up, of the others': a worker that sleeps, or whose
core is taken, delays nothing, and loops whose iterations differ in length end together. The caller then waits for claimed pieces only.

A loop is posted in one of a few slots of static memory. The next iteration of a range and the slot's generation are one word; a piece is claimed by comparing and swapping it, so that
what was read of the slot's fields before, in the same generation, belongs to the same loop. A word is closed (beyond any range) before the fields change again. Workers look at a
counter of posts for a while before they sleep on a futex (longer while a loop that they took part in is not over); who joins a loop wakes the next two, so that waking many does not keep the caller.

On Linux a worker is kept from the cpu of who wakes it, and moves if it meets its caller there. The kernel wakes a thread where its waker runs when its own cpu looks taken, as the halted ones of
a virtual machine do; the two then share a cpu in turns of 3 ms, next to an idle one, for many loops (softmax 1.6 ms instead of 0.8).

With several callers (or a loop inside a loop) each has a slot, and workers help one after another; callers that find no slot free work alone.
"""

from __future__ import annotations

from polyml.codegen.llvm.ring import RING
from polyml.runtime.threads.pipeline_text import PIPELINE
from polyml.runtime.threads.pool_system import PLACE_ANYWHERE, PLACE_LINUX, SLEEP_FUTEX, SLEEP_PTHREAD
from polyml.runtime.threads.pool_text import HELP, RUN

__all__ = ["MOST_THREADS", "emit_pool"]

MOST_THREADS = 256
"""Of one loop."""

SLOTS = 8
"""Loops that are shared at the same time."""

PATIENCE = 50
"""How much longer threads look where a loop that they took part in is not over yet: its last pieces are on their way, and after many a loop comes another."""

LINE = 64
"""Bytes between things that different threads write."""

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_GETTID = {"x86_64": 186, "aarch64": 178, "riscv64": 178}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    "arm64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}
"""Declaration and call of what makes a looking thread slow, by architecture."""


def emit_pool(architecture: str, *, linux: bool) -> str:
    """The text of `void @pool_run(body, ctx, lower, upper, step, total, n)`, of `void @polyml_pool_reset()`, for a child of a fork, whose workers are gone, and of what pipelined loops call.

    total: the iterations, at least n; n: threads, from 2. Uses `@polyml_spins` (i32): how often to look again before sleeping.
    """
    sleeping = SLEEP_FUTEX if linux and architecture in _FUTEX else SLEEP_PTHREAD
    names = {
        "slots": SLOTS,
        "patience": PATIENCE,
        "threads": MOST_THREADS,
        "words": LINE // 8,
        "bells": LINE // 4,
        "ring": RING,
        "ring.mask": RING - 1,
        "futex": _FUTEX.get(architecture, 0),
        "gettid": _GETTID.get(architecture, 0),
        "declare.pause": _PAUSE.get(architecture, ("", ""))[0],
        "pause": _PAUSE.get(architecture, ("", ""))[1],
    }
    placing = PLACE_LINUX if sleeping is SLEEP_FUTEX else PLACE_ANYWHERE
    text = _DATA + sleeping + placing + _WORKER + HELP + RUN + PIPELINE
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


# Fields of a slot: 0 owner, 1 generation, 2 body, 3 ctx, 4 lower, 5 upper, 6 step, 7 total, 8 n, 9 the caller's cpu, 10 (to the end of a line), 11 done, 12 waiting, 13 (to the end of a line), 14 words.
_DATA = """
%polyml.slot = type { i64, i64, ptr, ptr, i64, i64, i64, i64, i64, i32, [13 x i32], i64, i32, [13 x i32], [{threads} x [{words} x i64]] }
@pool_slots = internal global [{slots} x %polyml.slot] zeroinitializer, align 64
@pool_bells = internal global [{threads} x [{bells} x i32]] zeroinitializer, align 64
@pool_posts = internal global i32 0, align 64
@pool_workers = internal global i64 0, align 64
@pool_hiring = internal global i32 0
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
{declare.pause}
"""

_WORKER = """
; Wakes worker %p if it sleeps. A bell's line: 0 whether it sleeps, 1 its thread, 2 the cpu it is kept from (-1: none).
define internal void @pool_ring(i64 %p, i64 %n) {
  %is = icmp ult i64 %p, %n
  br i1 %is, label %one, label %done
one:
  %bell = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 0
  %was = atomicrmw xchg ptr %bell, i32 0 seq_cst
  %slept = icmp eq i32 %was, 1
  br i1 %slept, label %wake, label %done
wake:
  call void @pool_part(i64 %p)
  call void @pool_wake(ptr %bell)
  br label %done
done:
  ret void
}

define internal ptr @pool_worker(ptr %number) {
entry:
  %p = ptrtoint ptr %number to i64
  %last = alloca ptr
  store ptr @pool_slots, ptr %last
  call void @pool_settle(i64 %p)
  %bell = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 0
  br label %look
look:
  %seen = load atomic i32, ptr @pool_posts seq_cst, align 4
  br label %slot
slot:
  %s = phi i64 [0, %look], [%s.next, %helped]
  %any = phi i1 [false, %look], [%any.next, %helped]
  %all = icmp eq i64 %s, {slots}
  br i1 %all, label %looked, label %help
help:
  %at = getelementptr [{slots} x %polyml.slot], ptr @pool_slots, i64 0, i64 %s
  %did = call i1 @pool_help(ptr %at, i64 %p)
  br i1 %did, label %note, label %helped
note:
  store ptr %at, ptr %last
  br label %helped
helped:
  %any.next = or i1 %any, %did
  %s.next = add i64 %s, 1
  br label %slot
looked:
  br i1 %any, label %look, label %idle
idle:
  %spins = load i32, ptr @polyml_spins
  %most = mul i32 %spins, {patience}
  %slot.last = load ptr, ptr %last
  %n.p = getelementptr %polyml.slot, ptr %slot.last, i64 0, i32 8
  br label %spin
spin:
  %k = phi i32 [0, %idle], [%k.next, %again]
  %posts = load atomic i32, ptr @pool_posts acquire, align 4
  %none = icmp eq i32 %posts, %seen
  br i1 %none, label %wait, label %look
wait:
  %enough = icmp uge i32 %k, %most
  br i1 %enough, label %tired, label %again
again:
  {pause}
  %n = load atomic i64, ptr %n.p monotonic, align 8
  %over = icmp eq i64 %n, 0
  %looked.for = select i1 %over, i32 {patience}, i32 1
  %k.next = add i32 %k, %looked.for
  br label %spin
tired:
  store atomic i32 1, ptr %bell seq_cst, align 4
  %posts.now = load atomic i32, ptr @pool_posts seq_cst, align 4
  %quiet = icmp eq i32 %posts.now, %seen
  br i1 %quiet, label %sleep, label %awake
sleep:
  call void @pool_sleep(ptr %bell)
  br label %awake
awake:
  store atomic i32 0, ptr %bell seq_cst, align 4
  br label %look
}

; Makes workers 1 .. n - 1 exist, unless somebody else is at it.
define internal void @pool_hire(i64 %n) {
entry:
  %handle = alloca i64
  %have = load atomic i64, ptr @pool_workers acquire, align 8
  %first = add i64 %have, 1
  %enough = icmp uge i64 %first, %n
  br i1 %enough, label %done, label %try
try:
  %busy = atomicrmw xchg ptr @pool_hiring, i32 1 acquire
  %mine = icmp eq i32 %busy, 0
  br i1 %mine, label %begin, label %done
begin:
  %now = load atomic i64, ptr @pool_workers acquire, align 8
  %fresh = icmp eq i64 %now, 0
  br i1 %fresh, label %prepare, label %start
prepare:
  call void @pool_prepare()
  br label %start
start:
  %start.p = add i64 %now, 1
  br label %more
more:
  %p = phi i64 [%start.p, %start], [%p.next, %hired]
  %missing = icmp ult i64 %p, %n
  br i1 %missing, label %create, label %leave
create:
  %number = inttoptr i64 %p to ptr
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @pool_worker, ptr %number)
  %refused = icmp ne i32 %failed, 0
  br i1 %refused, label %leave, label %hired
hired:
  %thread = load i64, ptr %handle
  call i32 @pthread_detach(i64 %thread)
  store atomic i64 %p, ptr @pool_workers release, align 8
  %p.next = add i64 %p, 1
  br label %more
leave:
  store atomic i32 0, ptr @pool_hiring release, align 4
  br label %done
done:
  ret void
}
"""

"""The pool's text (polyml.runtime.threads.pool says how it works): claiming pieces of a loop, and posting one. Fields of a slot as there."""

from __future__ import annotations

__all__ = ["HELP", "RUN"]

HELP = """
; The first iteration of range %r of %n.
define internal i64 @pool_start(i64 %total, i64 %n, i64 %r) {
  %q = udiv i64 %total, %n
  %rest = urem i64 %total, %n
  %early = icmp ult i64 %r, %rest
  %extra = select i1 %early, i64 %r, i64 %rest
  %whole = mul i64 %r, %q
  %first = add i64 %whole, %extra
  ret i64 %first
}

; Thread %p claims and runs pieces of the slot's loop until none is left; whether there was one. What it has done it adds up for itself, and tells at the end: until then the loop is not over, and the slot remains this loop's.
define internal i1 @pool_help(ptr %slot, i64 %p) {
entry:
  %body.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 2
  %ctx.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 3
  %lower.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 4
  %upper.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 5
  %step.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 6
  %total.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 7
  %n.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 8
  %done.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 11
  %waiting.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 12
  %members = load atomic i64, ptr %n.p acquire, align 8
  %member = icmp ult i64 %p, %members
  br i1 %member, label %joins, label %nothing
nothing:
  ret i1 false
joins:
  %caller = icmp eq i64 %p, 0
  br i1 %caller, label %begin, label %apart
apart:
  %cpu.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 9
  %cpu = load atomic i32, ptr %cpu.p monotonic, align 4
  call void @pool_leave(i64 %p, i32 %cpu)
  br label %begin
begin:
  br label %range
range:
  %k = phi i64 [0, %begin], [%k.next, %used]
  %any = phi i1 [false, %begin], [%any.now, %used]
  %own = phi i64 [0, %begin], [%own.now, %used]
  %of = phi i64 [0, %begin], [%of.now, %used]
  %more = icmp ult i64 %k, %members
  br i1 %more, label %chosen, label %all
all:
  br i1 %any, label %report, label %left.alone
left.alone:
  ret i1 false
report:
  %had = atomicrmw add ptr %done.p, i64 %own seq_cst
  %has = add i64 %had, %own
  %last = icmp eq i64 %has, %of
  br i1 %last, label %tell, label %told
tell:
  %waits = atomicrmw xchg ptr %waiting.p, i32 0 seq_cst
  %sleeps = icmp eq i32 %waits, 1
  br i1 %sleeps, label %wake, label %told
wake:
  call void @pool_wake(ptr %waiting.p)
  br label %told
told:
  ret i1 true
chosen:
  %sum = add i64 %p, %k
  %r = urem i64 %sum, %members
  %word.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 14, i64 %r, i64 0
  br label %claim
claim:
  %any.now = phi i1 [%any, %chosen], [%any.now, %lost], [true, %run]
  %own.now = phi i64 [%own, %chosen], [%own.now, %lost], [%own.more, %run]
  %of.now = phi i64 [%of, %chosen], [%of.now, %lost], [%total, %run]
  %word = load atomic i64, ptr %word.p acquire, align 8
  %body = load atomic ptr, ptr %body.p acquire, align 8
  %ctx = load atomic ptr, ptr %ctx.p acquire, align 8
  %lower = load atomic i64, ptr %lower.p acquire, align 8
  %upper = load atomic i64, ptr %upper.p acquire, align 8
  %step = load atomic i64, ptr %step.p acquire, align 8
  %total = load atomic i64, ptr %total.p acquire, align 8
  %n = load atomic i64, ptr %n.p acquire, align 8
  %generation = lshr i64 %word, 40
  %posted = icmp ne i64 %generation, 0
  %within = icmp ult i64 %r, %n
  %valid = and i1 %posted, %within
  br i1 %valid, label %look, label %used
look:
  %at = and i64 %word, 1099511627775
  %behind = add i64 %r, 1
  %end = call i64 @pool_start(i64 %total, i64 %n, i64 %behind)
  %left = icmp ult i64 %at, %end
  br i1 %left, label %take, label %used
take:
  %rest = sub i64 %end, %at
  %quarter = lshr i64 %rest, 2
  %count = call i64 @llvm.umax.i64(i64 %quarter, i64 1)
  %moved = add i64 %word, %count
  %pair = cmpxchg ptr %word.p, i64 %word, i64 %moved acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %lost
lost:
  br label %claim
mine:
  br i1 %any.now, label %run, label %call.others
call.others:
  %twice = shl i64 %p, 1
  %left.child = add i64 %twice, 1
  %right.child = add i64 %twice, 2
  call void @pool_ring(i64 %left.child, i64 %n)
  call void @pool_ring(i64 %right.child, i64 %n)
  br label %run
run:
  %before = mul i64 %at, %step
  %lo = add i64 %lower, %before
  %size = mul i64 %count, %step
  %to = add i64 %lo, %size
  %hi = call i64 @llvm.smin.i64(i64 %to, i64 %upper)
  call void %body(ptr %ctx, i64 %lo, i64 %hi)
  %own.more = add i64 %own.now, %count
  br label %claim
used:
  %k.next = add i64 %k, 1
  br label %range
}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

RUN = """
; A free slot, taken; null when there is none.
define internal ptr @pool_take() {
entry:
  br label %next
next:
  %s = phi i64 [0, %entry], [%s.next, %other]
  %none = icmp eq i64 %s, {slots}
  br i1 %none, label %full, label %try
try:
  %slot = getelementptr [{slots} x %polyml.slot], ptr @pool_slots, i64 0, i64 %s
  %pair = cmpxchg ptr %slot, i64 0, i64 1 acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %taken, label %other
other:
  %s.next = add i64 %s, 1
  br label %next
taken:
  ret ptr %slot
full:
  ret ptr null
}

; Sets the words of ranges 0 .. n - 1 to their first iterations, or closes them.
define internal void @pool_words(ptr %slot, i64 %generation, i64 %total, i64 %n, i1 %close) {
entry:
  %high = shl i64 %generation, 40
  br label %next
next:
  %r = phi i64 [0, %entry], [%r.next, %set]
  %more = icmp ult i64 %r, %n
  br i1 %more, label %set, label %done
set:
  %start = call i64 @pool_start(i64 %total, i64 %n, i64 %r)
  %at = select i1 %close, i64 1099511627775, i64 %start
  %word = or i64 %high, %at
  %word.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 14, i64 %r, i64 0
  store atomic i64 %word, ptr %word.p release, align 8
  %r.next = add i64 %r, 1
  br label %next
done:
  ret void
}

; Returns when all iterations are done.
define internal void @pool_wait(ptr %slot, i64 %total) {
entry:
  %done.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 11
  %waiting.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 12
  %spins = load i32, ptr @polyml_spins
  %most = mul i32 %spins, {patience}
  br label %look
look:
  %k = phi i32 [0, %entry], [%k.next, %again], [%k, %slept]
  %did = load atomic i64, ptr %done.p acquire, align 8
  %all = icmp eq i64 %did, %total
  br i1 %all, label %done, label %wait
wait:
  %enough = icmp uge i32 %k, %most
  br i1 %enough, label %tired, label %again
again:
  {pause}
  %k.next = add i32 %k, 1
  br label %look
tired:
  store atomic i32 1, ptr %waiting.p seq_cst, align 4
  %did.now = load atomic i64, ptr %done.p seq_cst, align 8
  %all.now = icmp eq i64 %did.now, %total
  br i1 %all.now, label %done, label %sleep
sleep:
  call void @pool_sleep(ptr %waiting.p)
  br label %slept
slept:
  br label %look
done:
  ret void
}

define internal void @pool_run(ptr %body, ptr %ctx, i64 %lower, i64 %upper, i64 %step, i64 %total, i64 %wanted) {
entry:
  %n = call i64 @llvm.umin.i64(i64 %wanted, i64 {threads})
  %countable = icmp ult i64 %total, 1099511627775
  br i1 %countable, label %find, label %alone
find:
  %slot = call ptr @pool_take()
  %none = icmp eq ptr %slot, null
  br i1 %none, label %alone, label %post
alone:
  call void %body(ptr %ctx, i64 %lower, i64 %upper)
  ret void
post:
  call void @pool_hire(i64 %n)
  %generation.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 1
  %old = load i64, ptr %generation.p
  %raised = add i64 %old, 1
  %kept = and i64 %raised, 16777215
  %generation = call i64 @llvm.umax.i64(i64 %kept, i64 1)
  store i64 %generation, ptr %generation.p
  %body.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 2
  store atomic ptr %body, ptr %body.p release, align 8
  %ctx.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 3
  store atomic ptr %ctx, ptr %ctx.p release, align 8
  %lower.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 4
  store atomic i64 %lower, ptr %lower.p release, align 8
  %upper.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 5
  store atomic i64 %upper, ptr %upper.p release, align 8
  %step.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 6
  store atomic i64 %step, ptr %step.p release, align 8
  %total.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 7
  store atomic i64 %total, ptr %total.p release, align 8
  %done.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 11
  store atomic i64 0, ptr %done.p release, align 8
  %waiting.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 12
  store atomic i32 0, ptr %waiting.p release, align 4
  %cpu.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 9
  %cpu = call i32 @pool_cpu()
  store atomic i32 %cpu, ptr %cpu.p monotonic, align 4
  call void @pool_words(ptr %slot, i64 %generation, i64 %total, i64 %n, i1 false)
  %n.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 8
  store atomic i64 %n, ptr %n.p release, align 8
  %posted = atomicrmw add ptr @pool_posts, i32 1 seq_cst
  %worked = call i1 @pool_help(ptr %slot, i64 0)
  call void @pool_wait(ptr %slot, i64 %total)
  store atomic i64 0, ptr %n.p release, align 8
  call void @pool_words(ptr %slot, i64 %generation, i64 %total, i64 %n, i1 true)
  store atomic i64 0, ptr %slot release, align 8
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)

define void @polyml_pool_reset() {
entry:
  store i64 0, ptr @pool_workers
  store i32 0, ptr @pool_hiring
  br label %bell
bell:
  ; Nobody sleeps, and the threads that are noted there are the parent's.
  %p = phi i64 [0, %entry], [%p.next, %bell]
  %word = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 0
  %thread = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 1
  store i32 0, ptr %word
  store i32 0, ptr %thread
  %p.next = add i64 %p, 1
  %silent = icmp eq i64 %p.next, {threads}
  br i1 %silent, label %next, label %bell
next:
  %s = phi i64 [0, %bell], [%s.next, %reset]
  %more = icmp ult i64 %s, {slots}
  br i1 %more, label %reset, label %done
reset:
  %slot = getelementptr [{slots} x %polyml.slot], ptr @pool_slots, i64 0, i64 %s
  %generation.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 1
  %generation = load i64, ptr %generation.p
  %n.p = getelementptr %polyml.slot, ptr %slot, i64 0, i32 8
  store atomic i64 0, ptr %n.p release, align 8
  call void @pool_words(ptr %slot, i64 %generation, i64 {threads}, i64 {threads}, i1 true)
  store atomic i64 0, ptr %slot release, align 8
  %s.next = add i64 %s, 1
  br label %next
done:
  ret void
}
"""

"""What the pool's threads ask of the operating system, as LLVM IR: to sleep and be woken, and where they run. See threads/pool.py, which fills in the names in braces."""

from __future__ import annotations

__all__ = ["PLACE_ANYWHERE", "PLACE_LINUX", "SLEEP_FUTEX", "SLEEP_PTHREAD"]

SLEEP_FUTEX = """
declare i64 @syscall(i64, ...)

; Sleeps until it is woken, unless the word is not 1 any more.
define internal void @pool_sleep(ptr %word) {
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 128, i32 1, ptr null, ptr null, i32 0)
  ret void
}

; Wakes who sleeps on the word.
define internal void @pool_wake(ptr %word) {
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 129, i32 1, ptr null, ptr null, i32 0)
  ret void
}

define internal void @pool_prepare() {
  ret void
}
"""

SLEEP_PTHREAD = """
@pool_mutex = internal global [128 x i8] zeroinitializer, align 64
@pool_condition = internal global [128 x i8] zeroinitializer, align 64
@pool_prepared = internal global i1 false
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

; Sleeps until the word is not 1 any more.
define internal void @pool_sleep(ptr %word) {
  call i32 @pthread_mutex_lock(ptr @pool_mutex)
  br label %look
look:
  %value = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %value, 1
  br i1 %still, label %wait, label %done
wait:
  call i32 @pthread_cond_wait(ptr @pool_condition, ptr @pool_mutex)
  br label %look
done:
  call i32 @pthread_mutex_unlock(ptr @pool_mutex)
  ret void
}

; Wakes who sleeps on the word, which is not 1 any more.
define internal void @pool_wake(ptr %word) {
  call i32 @pthread_mutex_lock(ptr @pool_mutex)
  call i32 @pthread_cond_broadcast(ptr @pool_condition)
  call i32 @pthread_mutex_unlock(ptr @pool_mutex)
  ret void
}

define internal void @pool_prepare() {
  call i32 @pthread_mutex_init(ptr @pool_mutex, ptr null)
  call i32 @pthread_cond_init(ptr @pool_condition, ptr null)
  ret void
}
"""

PLACE_LINUX = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i32 @pool_cpu() {
  %cpu = call i32 @sched_getcpu()
  ret i32 %cpu
}

; Notes which thread worker %p is. It may run anywhere.
define internal void @pool_settle(i64 %p) {
  %tid.long = call i64 (i64, ...) @syscall(i64 {gettid})
  %tid = trunc i64 %tid.long to i32
  %away.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 2
  store atomic i32 -1, ptr %away.p monotonic, align 4
  %tid.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 1
  store atomic i32 %tid, ptr %tid.p release, align 4
  ret void
}

; Lets thread %tid, worker %p, run where this thread may and on cpu %also (-1: none), but not on %cpu, unless nothing else is left.
define internal void @pool_keep_off(i64 %p, i32 %tid, i32 %cpu, i32 %also) {
entry:
  %set = alloca i1024, align 8
  store i1024 0, ptr %set, align 8
  %refused = call i32 @sched_getaffinity(i32 0, i64 128, ptr %set)
  %failed = icmp slt i32 %refused, 0
  %unknown = icmp uge i32 %cpu, 1024
  %not = or i1 %failed, %unknown
  br i1 %not, label %done, label %look
look:
  %mine = load i1024, ptr %set, align 8
  %has.also = icmp ult i32 %also, 1024
  %also.known = select i1 %has.also, i32 %also, i32 0
  %also.wide = zext i32 %also.known to i1024
  %also.bit = shl i1024 1, %also.wide
  %added = select i1 %has.also, i1024 %also.bit, i1024 0
  %all = or i1024 %mine, %added
  %wide = zext i32 %cpu to i1024
  %bit = shl i1024 1, %wide
  %others = xor i1024 %bit, -1
  %rest = and i1024 %all, %others
  %none = icmp eq i1024 %rest, 0
  br i1 %none, label %done, label %set.it
set.it:
  store i1024 %rest, ptr %set, align 8
  call i32 @sched_setaffinity(i32 %tid, i64 128, ptr %set)
  %away.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 2
  store atomic i32 %cpu, ptr %away.p monotonic, align 4
  br label %done
done:
  ret void
}

; Before worker %p is woken: not on this cpu.
define internal void @pool_part(i64 %p) {
entry:
  %tid.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 1
  %tid = load atomic i32, ptr %tid.p acquire, align 4
  %away.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 2
  %away = load atomic i32, ptr %away.p monotonic, align 4
  %here = call i32 @sched_getcpu()
  %already = icmp eq i32 %here, %away
  %nobody = icmp eq i32 %tid, 0
  %nothing = or i1 %already, %nobody
  br i1 %nothing, label %done, label %keep
keep:
  call void @pool_keep_off(i64 %p, i32 %tid, i32 %here, i32 -1)
  br label %done
done:
  ret void
}

; Worker %p moves if it is on the cpu of the caller.
define internal void @pool_leave(i64 %p, i32 %cpu) {
entry:
  %here = call i32 @sched_getcpu()
  %same = icmp eq i32 %here, %cpu
  br i1 %same, label %move, label %done
move:
  %away.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 2
  %away = load atomic i32, ptr %away.p monotonic, align 4
  call void @pool_keep_off(i64 %p, i32 0, i32 %cpu, i32 %away)
  br label %done
done:
  ret void
}

; The same from a worker that does not know its number, and may be none of the pool's.
define internal void @pool_stay_apart(i32 %cpu) {
entry:
  %here = call i32 @sched_getcpu()
  %same = icmp eq i32 %here, %cpu
  br i1 %same, label %who, label %done
who:
  %tid.long = call i64 (i64, ...) @syscall(i64 {gettid})
  %tid = trunc i64 %tid.long to i32
  br label %next
next:
  %p = phi i64 [1, %who], [%p.next, %other]
  %more = icmp ult i64 %p, {threads}
  br i1 %more, label %look, label %done
look:
  %tid.p = getelementptr [{threads} x [{bells} x i32]], ptr @pool_bells, i64 0, i64 %p, i64 1
  %its = load atomic i32, ptr %tid.p acquire, align 4
  %mine = icmp eq i32 %its, %tid
  br i1 %mine, label %found, label %other
other:
  %p.next = add i64 %p, 1
  br label %next
found:
  call void @pool_leave(i64 %p, i32 %cpu)
  br label %done
done:
  ret void
}
"""

PLACE_ANYWHERE = """
define internal void @pool_stay_apart(i32 %cpu) {
  ret void
}

define internal i32 @pool_cpu() {
  ret i32 -1
}

define internal void @pool_settle(i64 %p) {
  ret void
}

define internal void @pool_part(i64 %p) {
  ret void
}

define internal void @pool_leave(i64 %p, i32 %cpu) {
  ret void
}
"""

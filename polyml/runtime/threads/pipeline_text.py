"""The text of what pipelined loops call (polyml.codegen.llvm.functions.pipeline says how they run).

A pipeline, in words of 8 bytes: 0 the next row, 8 lower, 9 upper, 10 step, 11 the caller's thread, 12 its cpu, from 16 on a ring of (row, progress). Progress is a value before which all stages of this row and of those before it are done, the greatest integer when these rows are. Rows
end in order: those that are not done are the last ones that were taken. A place in the ring is taken again when the row behind the one that it was for is done, since only that one looks at it.
Rows are taken in order, and by threads that run, so that somebody always goes on.
"""

from __future__ import annotations

__all__ = ["PIPELINE"]

PIPELINE = """
%polyml.pipeline = type { i64, [7 x i64], i64, i64, i64, ptr, i32, [3 x i64], [{ring} x { i64, i64 }] }
declare i32 @sched_yield()
declare ptr @pthread_self()

define void @polyml_pipeline(ptr %p, i64 %lower, i64 %upper, i64 %step) {
entry:
  store i64 %lower, ptr %p
  %lower.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 2
  store i64 %lower, ptr %lower.p
  %upper.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 3
  store i64 %upper, ptr %upper.p
  %step.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 4
  store i64 %step, ptr %step.p
  %caller.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 5
  %self = call ptr @pthread_self()
  store ptr %self, ptr %caller.p
  %cpu.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 6
  %cpu = call i32 @pool_cpu()
  store atomic i32 %cpu, ptr %cpu.p monotonic, align 4
  br label %next
next:
  %k = phi i64 [0, %entry], [%k.next, %next]
  %row.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 8, i64 %k, i32 0
  store i64 -9223372036854775808, ptr %row.p
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, {ring}
  br i1 %more, label %next, label %done
done:
  ret void
}

; A worker leaves the cpu that the caller is on now: what took turns on one cpu here would do so for as long as the loop runs.
define internal void @pipeline_part(ptr %p) {
entry:
  %caller.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 5
  %caller = load ptr, ptr %caller.p
  %self = call ptr @pthread_self()
  %cpu.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 6
  %is = icmp eq ptr %caller, %self
  br i1 %is, label %note, label %leave
note:
  %here = call i32 @pool_cpu()
  store atomic i32 %here, ptr %cpu.p monotonic, align 4
  ret void
leave:
  %cpu = load atomic i32, ptr %cpu.p monotonic, align 4
  call void @pool_stay_apart(i32 %cpu)
  ret void
}

; The place of a row in the ring.
define internal ptr @pipeline_place(ptr %p, i64 %row) {
  %lower.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 2
  %lower = load i64, ptr %lower.p
  %step.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 4
  %step = load i64, ptr %step.p
  %ahead = sub i64 %row, %lower
  %number = sdiv i64 %ahead, %step
  %k = and i64 %number, {ring.mask}
  %place = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 8, i64 %k
  ret ptr %place
}

; Returns when the row's progress is beyond %v. Rows before the first one are done.
define internal void @pipeline_wait(ptr %p, i64 %row, i64 %v) {
entry:
  %lower.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 2
  %lower = load i64, ptr %lower.p
  %none = icmp slt i64 %row, %lower
  br i1 %none, label %done, label %find
find:
  %place = call ptr @pipeline_place(ptr %p, i64 %row)
  %progress.p = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  %spins = load i32, ptr @polyml_spins
  br label %look
look:
  %k = phi i32 [0, %find], [%k.next, %pause], [%k, %yield]
  %here = load atomic i64, ptr %place acquire, align 8
  %later = icmp sgt i64 %here, %row
  br i1 %later, label %done, label %begun
begun:
  %is = icmp eq i64 %here, %row
  %progress = load atomic i64, ptr %progress.p acquire, align 8
  %beyond = icmp sgt i64 %progress, %v
  %passed = and i1 %is, %beyond
  br i1 %passed, label %done, label %wait
wait:
  %tired = icmp uge i32 %k, %spins
  br i1 %tired, label %yield, label %pause
pause:
  {pause}
  %k.next = add i32 %k, 1
  br label %look
yield:
  call i32 @sched_yield()
  br label %look
done:
  ret void
}

; The stage that the row was at is done. Where the next one is, the row before has to have been first: between the two there may be stages of the row behind.
define internal void @pipeline_past(ptr %progress.p) {
  %at = load atomic i64, ptr %progress.p monotonic, align 8
  %past = add i64 %at, 1
  store atomic i64 %past, ptr %progress.p release, align 8
  ret void
}

define i64 @polyml_row(ptr %p) {
entry:
  %step.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 4
  %step = load i64, ptr %step.p
  %upper.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 3
  %upper = load i64, ptr %upper.p
  %row = atomicrmw add ptr %p, i64 %step acq_rel
  %some = icmp slt i64 %row, %upper
  br i1 %some, label %take, label %done
take:
  %around = mul i64 %step, {ring.mask}
  %behind = sub i64 %row, %around
  call void @pipeline_wait(ptr %p, i64 %behind, i64 9223372036854775806)
  %place = call ptr @pipeline_place(ptr %p, i64 %row)
  %progress.p = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  store atomic i64 -9223372036854775808, ptr %progress.p monotonic, align 8
  store atomic i64 %row, ptr %place release, align 8
  br label %done
done:
  ret i64 %row
}

define void @polyml_stage(ptr %p, i64 %row, i64 %v) {
  fence seq_cst
  call void @pipeline_part(ptr %p)
  %place = call ptr @pipeline_place(ptr %p, i64 %row)
  %progress.p = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  call void @pipeline_past(ptr %progress.p)
  %step.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 4
  %step = load i64, ptr %step.p
  %before = sub i64 %row, %step
  call void @pipeline_wait(ptr %p, i64 %before, i64 %v)
  store atomic i64 %v, ptr %progress.p release, align 8
  ret void
}

define void @polyml_row_done(ptr %p, i64 %row) {
  fence seq_cst
  %step.p = getelementptr %polyml.pipeline, ptr %p, i64 0, i32 4
  %step = load i64, ptr %step.p
  %before = sub i64 %row, %step
  %place = call ptr @pipeline_place(ptr %p, i64 %row)
  %progress.p = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  call void @pipeline_past(ptr %progress.p)
  call void @pipeline_wait(ptr %p, i64 %before, i64 9223372036854775806)
  store atomic i64 9223372036854775807, ptr %progress.p release, align 8
  ret void
}
"""

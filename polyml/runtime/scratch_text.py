"""Scratch memory of kernels, as LLVM IR: a few buffers are kept from call to call, because the pages of fresh ones are cleared when they are first written (a
quarter of a 512 x 512 product).

    ptr @polyml_scratch(i64 bytes)          at a multiple of 64 bytes, not cleared
    void @polyml_scratch_free(ptr buffer)

Buffers that nobody uses lie in slots; who wants one takes what is in a slot away by exchanging it for null, so that no lock is needed. A line ahead of each says how large it is.
"""

from __future__ import annotations

__all__ = ["KEPT", "SLOTS", "emit_scratch"]

SLOTS = 8
"""Buffers that are kept, at most."""

KEPT = 16 << 20
"""Bytes of a buffer that is kept, at most."""


def emit_scratch() -> str:
    """The text of both functions."""
    return _TEXT.replace("{slots}", str(SLOTS)).replace("{kept}", str(KEPT))


_TEXT = """
@scratch_slots = internal global [{slots} x i64] zeroinitializer, align 64
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

; A buffer of at least so many bytes, and at most twice as many and a little.
define noalias ptr @polyml_scratch(i64 %bytes) nounwind {
entry:
  %double = mul i64 %bytes, 2
  %most = add i64 %double, 65536
  %room = alloca ptr, align 8
  br label %look
look:
  %k = phi i64 [0, %entry], [%next, %other]
  %slot = getelementptr i64, ptr @scratch_slots, i64 %k
  %seen = load atomic i64, ptr %slot monotonic, align 8
  %empty = icmp eq i64 %seen, 0
  br i1 %empty, label %other, label %take
take:
  %taken = atomicrmw xchg ptr %slot, i64 0 acq_rel
  %gone = icmp eq i64 %taken, 0
  br i1 %gone, label %other, label %compare
compare:
  %buffer = inttoptr i64 %taken to ptr
  %head = getelementptr i8, ptr %buffer, i64 -64
  %size = load i64, ptr %head, align 8
  %large = icmp uge i64 %size, %bytes
  %small = icmp ule i64 %size, %most
  %fits = and i1 %large, %small
  br i1 %fits, label %found, label %back
found:
  ret ptr %buffer
back:
  %other.taken = atomicrmw xchg ptr %slot, i64 %taken acq_rel
  %alone = icmp eq i64 %other.taken, 0
  br i1 %alone, label %other, label %drop
drop:
  %dropped = inttoptr i64 %other.taken to ptr
  %dropped.head = getelementptr i8, ptr %dropped, i64 -64
  call void @free(ptr %dropped.head)
  br label %other
other:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {slots}
  br i1 %more, label %look, label %fresh
fresh:
  %total = add i64 %bytes, 64
  %failed = call i32 @posix_memalign(ptr %room, i64 64, i64 %total)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %none, label %made
none:
  ret ptr null
made:
  %start = load ptr, ptr %room, align 8
  store i64 %bytes, ptr %start, align 8
  %result = getelementptr i8, ptr %start, i64 64
  ret ptr %result
}

define void @polyml_scratch_free(ptr %buffer) nounwind {
entry:
  %word = ptrtoint ptr %buffer to i64
  %null = icmp eq i64 %word, 0
  br i1 %null, label %done, label %measure
measure:
  %head = getelementptr i8, ptr %buffer, i64 -64
  %size = load i64, ptr %head, align 8
  %huge = icmp ugt i64 %size, {kept}
  br i1 %huge, label %free, label %look
look:
  %k = phi i64 [0, %measure], [%next, %full]
  %slot = getelementptr i64, ptr @scratch_slots, i64 %k
  %put = cmpxchg ptr %slot, i64 0, i64 %word acq_rel monotonic
  %well = extractvalue { i64, i1 } %put, 1
  br i1 %well, label %done, label %full
full:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {slots}
  br i1 %more, label %look, label %replace
replace:
  ; No slot is empty: this buffer takes the place of one that was used longer ago.
  %page = lshr i64 %word, 12
  %which = urem i64 %page, {slots}
  %place = getelementptr i64, ptr @scratch_slots, i64 %which
  %old = atomicrmw xchg ptr %place, i64 %word acq_rel
  %nothing = icmp eq i64 %old, 0
  br i1 %nothing, label %done, label %oust
oust:
  %ousted = inttoptr i64 %old to ptr
  %ousted.head = getelementptr i8, ptr %ousted, i64 -64
  call void @free(ptr %ousted.head)
  br label %done
free:
  call void @free(ptr %head)
  br label %done
done:
  ret void
}
"""

"""Scratch memory of kernels, as LLVM IR: buffers are kept from call to call, because the pages of fresh ones are cleared when they are first written (a
quarter of a 512 x 512 product, half of a filter over a 70 MB image).

    ptr @polyml_scratch(i64 bytes)          at a multiple of 64 bytes, not cleared
    void @polyml_scratch_free(ptr buffer)
    i64 @polyml_scratch_most                bytes that are kept, all buffers together

Buffers that nobody uses lie in slots; who wants one takes what is in a slot away by exchanging it for null, so that no lock is needed. A line ahead of each says how large it is.
Small ones are left to malloc; who needs none, since another version of a function runs, asks for 0 bytes, and gets the address of some that nobody writes to. Large ones start at a page, like operands and results (recycle.py says why), behind the first one of a huge page, and ask for such (Linux: madvise(2), MADV_HUGEPAGE), so that a walk down a column meets few of them; while
they lie in a slot, the system may take their pages when it runs short of memory (MADV_FREE), and when they are freed it gets them at once (MADV_DONTNEED).
"""

from __future__ import annotations

__all__ = ["KEPT", "LARGE", "SLOTS", "SMALL", "emit_scratch"]

SLOTS = 16
"""Buffers that are kept, at most."""

KEPT = 16 << 20
"""Bytes that are kept until the loader says what this process may keep."""

SMALL = 64 << 10
"""Bytes: smaller buffers are malloc's."""

LARGE = 4 << 20
"""Bytes from which on buffers lie in huge pages."""

_HUGE_PAGE = 2 << 20


def emit_scratch(*, linux: bool) -> str:
    """The text of both functions. linux: the system knows huge pages and memory that it may take."""
    text = _TEXT + (_ADVISE if linux else _NO_ADVICE)
    numbers = {"slots": SLOTS, "kept": KEPT, "smallest": SMALL, "large": LARGE, "absurd": 1 << 62}
    numbers |= {"page": _HUGE_PAGE, "mask": -_HUGE_PAGE}
    for name, number in numbers.items():
        text = text.replace(f"{{{name}}}", str(number))
    return text


_TEXT = """
@polyml_scratch_most = global i64 {kept}, align 64
@scratch_kept = internal global i64 0, align 64
@scratch_unused = internal global [64 x i8] zeroinitializer, align 64
@scratch_slots = internal global [{slots} x i64] zeroinitializer, align 64
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

; The allocator may keep what is freed inside its heap: the pages of large buffers go back to the system first.
define internal void @scratch_release(ptr %buffer, i64 %size) nounwind {
entry:
  %vast = icmp uge i64 %size, {large}
  %behind = select i1 %vast, i64 -4096, i64 -64
  %start = getelementptr i8, ptr %buffer, i64 %behind
  br i1 %vast, label %empty, label %free
empty:
  call void @scratch_empty(ptr %start, i64 %size)
  br label %free
free:
  call void @free(ptr %start)
  ret void
}

; Frees what was taken out of a slot.
define internal void @scratch_drop(i64 %word) nounwind {
  %buffer = inttoptr i64 %word to ptr
  %head = getelementptr i8, ptr %buffer, i64 -64
  %size = load i64, ptr %head, align 8
  %before = atomicrmw sub ptr @scratch_kept, i64 %size monotonic
  call void @scratch_release(ptr %buffer, i64 %size)
  ret void
}

; A buffer of at least so many bytes, and at most twice as many and a little.
define noalias ptr @polyml_scratch(i64 %bytes) nounwind {
entry:
  %double = mul i64 %bytes, 2
  %most = add i64 %double, {smallest}
  %room = alloca ptr, align 8
  %unused = icmp eq i64 %bytes, 0
  br i1 %unused, label %nothing, label %some
nothing:
  ret ptr @scratch_unused
some:
  %little = icmp ult i64 %bytes, {smallest}
  br i1 %little, label %fresh, label %look
look:
  %k = phi i64 [0, %some], [%next, %other]
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
  %before = atomicrmw sub ptr @scratch_kept, i64 %size monotonic
  ret ptr %buffer
back:
  %other.taken = atomicrmw xchg ptr %slot, i64 %taken acq_rel
  %alone = icmp eq i64 %other.taken, 0
  br i1 %alone, label %other, label %drop
drop:
  call void @scratch_drop(i64 %other.taken)
  br label %other
other:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {slots}
  br i1 %more, label %look, label %fresh
fresh:
  %absurd = icmp ugt i64 %bytes, {absurd}
  br i1 %absurd, label %none, label %get
get:
  %vast = icmp uge i64 %bytes, {large}
  %behind = select i1 %vast, i64 4096, i64 64
  %total = add i64 %bytes, %behind
  %alignment = select i1 %vast, i64 {page}, i64 64
  %failed = call i32 @posix_memalign(ptr %room, i64 %alignment, i64 %total)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %none, label %made
none:
  ret ptr null
made:
  %start = load ptr, ptr %room, align 8
  br i1 %vast, label %advise, label %note
advise:
  call void @scratch_huge(ptr %start, i64 %total)
  br label %note
note:
  %result = getelementptr i8, ptr %start, i64 %behind
  %noted = getelementptr i8, ptr %result, i64 -64
  store i64 %bytes, ptr %noted, align 8
  ret ptr %result
}

define void @polyml_scratch_free(ptr %buffer) nounwind {
entry:
  %word = ptrtoint ptr %buffer to i64
  %null = icmp eq i64 %word, 0
  %unused = icmp eq ptr %buffer, @scratch_unused
  %neither = or i1 %null, %unused
  br i1 %neither, label %done, label %measure
measure:
  %head = getelementptr i8, ptr %buffer, i64 -64
  %size = load i64, ptr %head, align 8
  %most = load atomic i64, ptr @polyml_scratch_most monotonic, align 8
  %little = icmp ult i64 %size, {smallest}
  %huge = icmp ugt i64 %size, %most
  %foreign = or i1 %little, %huge
  br i1 %foreign, label %free, label %weigh
weigh:
  ; Others make room first, as long as all together are too large.
  %w = phi i64 [0, %measure], [%w.next, %heavy], [%w.next, %lighter]
  %kept = load atomic i64, ptr @scratch_kept monotonic, align 8
  %sum = add i64 %kept, %size
  %over = icmp ugt i64 %sum, %most
  %left = icmp ult i64 %w, {slots}
  %reduce = and i1 %over, %left
  br i1 %reduce, label %heavy, label %keep
heavy:
  %w.next = add i64 %w, 1
  %w.slot = getelementptr i64, ptr @scratch_slots, i64 %w
  %w.taken = atomicrmw xchg ptr %w.slot, i64 0 acq_rel
  %w.none = icmp eq i64 %w.taken, 0
  br i1 %w.none, label %weigh, label %lighter
lighter:
  call void @scratch_drop(i64 %w.taken)
  br label %weigh
keep:
  %more.kept = atomicrmw add ptr @scratch_kept, i64 %size monotonic
  %vast = icmp uge i64 %size, {large}
  br i1 %vast, label %lend, label %look
lend:
  %start = getelementptr i8, ptr %buffer, i64 -4096
  call void @scratch_lend(ptr %start, i64 %size)
  br label %look
look:
  %k = phi i64 [0, %keep], [0, %lend], [%next, %full]
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
  call void @scratch_drop(i64 %old)
  br label %done
free:
  call void @scratch_release(ptr %buffer, i64 %size)
  br label %done
done:
  ret void
}
"""

_ADVISE = """
declare i32 @madvise(ptr, i64, i32)

define internal void @scratch_huge(ptr %start, i64 %total) nounwind {
  %ignored = call i32 @madvise(ptr %start, i64 %total, i32 14)
  ret void
}

; All pages but the first, in which the size is, and those that another buffer may share: MADV_FREE and MADV_DONTNEED.
define internal void @scratch_advise(ptr %start, i64 %size, i32 %advice) nounwind {
  %pages = and i64 %size, {mask}
  %behind = sub i64 %pages, {page}
  %rest = getelementptr i8, ptr %start, i64 {page}
  %ignored = call i32 @madvise(ptr %rest, i64 %behind, i32 %advice)
  ret void
}

define internal void @scratch_lend(ptr %start, i64 %size) nounwind {
  call void @scratch_advise(ptr %start, i64 %size, i32 8)
  ret void
}

define internal void @scratch_empty(ptr %start, i64 %size) nounwind {
  call void @scratch_advise(ptr %start, i64 %size, i32 4)
  ret void
}
"""

_NO_ADVICE = """
define internal void @scratch_huge(ptr %start, i64 %total) nounwind {
  ret void
}

define internal void @scratch_lend(ptr %start, i64 %size) nounwind {
  ret void
}

define internal void @scratch_empty(ptr %start, i64 %size) nounwind {
  ret void
}
"""

"""Which results go past the caches: those that are written once, not read again by the region, and too large to stay in cache anyway.

A plain store of a line that is not in cache first reads it from memory, and pushes out what is worth keeping; a streaming store does neither. A later region would have to fetch
the line from memory, so results that one reads are only streamed when they are many times as large as L2 (`AGAIN`). So would the caller, and the next call's stores find the lines of a result that was freed where
they were: as long as all that a region touches stays in the last level from one call to the next (`kept`), stores go through the caches, two to three times as fast.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import islpy as isl

from polyml.expressions import reads_of
from polyml.schedule.large_enough import bytes_at_hand
from polyml.schedule.scan_rows import row_scan
from polyml.schedule.schedule import Note
from polyml.scop.scop import Array, Scop
from polyml.sets.spaces import maps_of
from polyml.target import Target

__all__ = ["is_large", "kept", "streamed_arrays", "streamed_sums", "streamed_when_large"]

AGAIN = 8
"""Of results that a later region reads, so many times L2 is large: a core's share of L3 is not much more. Measured, written and then read by one core with 2 MiB of L2: 2 times
L2 take 1.3 times as long past the caches, 4 times 0.92, 8 times 0.78, 16 times 0.63, 32 times and more 0.6."""

LONG_ROW = 16
"""Lines of a row from which on its ends do not matter. Those of a shorter one that is no whole lines are written through the cache, beside lines that are not, which takes longer than it saves:
10 MB in rows of 54 f32 take 6 ms longer that way."""

ENDS = 2
"""As many times more must be touched where rows are no whole lines and vectors are shorter than these: lines at rows' ends go through the caches, of which each store past them waits for. Measured on Zen 3 (AVX2), past the caches over through them:
3.6 MB in rows of 19 lines 2.3, 5.6 MB in rows of 44 1.1, 8.2 MB in rows of 26 0.6, 24 MB in rows of 94 0.68, 32 MB in rows of 17 0.9."""

FEW_ENDS = 128
"""Lines of a row from which on there are so few ends that they count for nothing: elements side by side are one row."""

SHARE = 4
"""Of the last level, a part that one region may take for itself."""

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


def streamed_arrays(
    scop: Scop, target: Target, results: Set[str], *, precise: bool
) -> tuple[frozenset[str], tuple[Note, ...]]:
    """The arrays whose stores should bypass the caches.

    Args:
        results: arrays that no later region reads. precise: floating-point sums keep their order, so that they are no scans.
    """
    found = [
        array.name
        for array in scop.arrays.values()
        if is_large(scop, array, target, results) and _is_only_written_once(scop, array.name, precise=precise)
    ]
    notes = tuple(
        Note("streaming", name, f"written once, {_reason(name in results)}: stores bypass caches") for name in found
    )
    return frozenset(found), notes


def streamed_when_large(scop: Scop, target: Target, results: Set[str], *, precise: bool) -> dict[str, int]:
    """The arrays of symbolic size whose stores should bypass the caches where they are large: more than so many bytes.

    Those that a later region reads only if they are so large in the call that the kernel is compiled for: they are many, and each is a version of the region.
    """
    found: dict[str, int] = {}
    for array in scop.arrays.values():
        if array.kind != "output" or array.bytes is not None:
            continue
        # Of what else is touched, as large as the result.
        least = max(target.l2_bytes, kept(target) // 2) if array.name in results else AGAIN * target.l2_bytes
        likely = array.name in results or bytes_at_hand(scop, array) > least
        if likely and _is_only_written_once(scop, array.name, precise=precise):
            found[array.name] = least
    return found


def streamed_sums(
    scop: Scop, target: Target, results: Set[str], updates: Collection[str], *, far: Set[str] = frozenset()
) -> frozenset[str]:
    """The arrays that these updates write once each, when their sums are finished, and that nothing else in the region touches.

    Args:
        results: arrays that no later region reads. far: arrays of symbolic size that are larger than L2 wherever the schedule runs.
    """
    found: set[str] = set()
    for name in updates:
        array = scop.arrays[scop.statements[name].target.array]
        users = [s for s in scop.statements.values() if s.target.array == array.name and s.name != name]
        readers = [s for s in scop.statements.values() if any(r.tensor == array.name for r in reads_of(s.value))]
        if (
            array.name in results
            and (_is_larger(array, target.l2_bytes) or array.name in far)
            and not readers
            and [s.kind for s in users] == ["init"]
        ):
            found.add(array.name)
    return frozenset(found)


def kept(target: Target) -> int:
    """Bytes that stay in cache from one call to the next: no more than a part of the last level, of which a machine may report more than one core can have."""
    return max(target.l2_bytes, min(target.l3_bytes // SHARE, AGAIN * target.l2_bytes))


def is_large(scop: Scop, array: Array, target: Target, results: Set[str]) -> bool:
    """Whether an array of known size is a result that is too large to stay in cache."""
    if array.name not in results:
        return _is_larger(array, AGAIN * target.l2_bytes) and _has_long_rows(array, target.line_bytes)
    touched = _touched(scop, target)
    if target.vector_bytes < target.line_bytes and not _has_long_rows(array, target.line_bytes, FEW_ENDS):
        touched = touched // ENDS if _has_long_rows(array, target.line_bytes) else 0
    return _is_larger(array, target.l2_bytes) and touched > kept(target)


def _is_larger(array: Array, least: int) -> bool:
    size = array.bytes
    return array.kind == "output" and size is not None and size > least


def _has_long_rows(array: Array, line: int, long: int = LONG_ROW) -> bool:
    """Whether rows are whole lines, or many."""
    row = array.shape[-1].constant * array.dtype.itemsize if array.shape else 0
    return row >= long * line or (bool(array.shape) and row % line == 0)


def _touched(scop: Scop, target: Target) -> int:
    """Bytes of what callers give and get; those that are not known count as many."""
    known = [array.bytes for array in scop.arrays.values() if array.kind != "local"]
    return sum(size for size in known if size is not None) if None not in known else kept(target) + 1


def _reason(is_last: bool) -> str:
    return "not read again, larger than what stays in cache" if is_last else "much larger than L2"


def _is_only_written_once(scop: Scop, name: str, *, precise: bool) -> bool:
    """Whether nothing reads the array, but for scans, which carry the last element in a register."""
    if any(s.target.array == name and s.kind != "assign" for s in scop.statements.values()):
        return False
    readers = {access.get_tuple_name(_IN) for access in maps_of(scop.reads) if access.get_tuple_name(_OUT) == name}
    for reader in readers:
        scan = row_scan(scop.statements[reader], scop)
        if scan is None or not scan.alone or scop.statements[reader].target.array != name:
            return False
        if precise and not scan.exact:
            return False
    writes = [access for access in maps_of(scop.may_writes) if access.get_tuple_name(_OUT) == name]
    if not writes:  # it has no elements
        return False
    total = writes[0].to_union_map()
    for access in writes[1:]:
        total = total.union(access.to_union_map())
    return total.is_injective()

"""Where a scratch array may live on a GPU: in a thread, in a block's shared memory, or in device memory."""

from __future__ import annotations

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.tree import Kind, kind_of, mark_name, nodes
from polyml.target import Target

__all__ = ["MAX_LOCAL_BYTES", "SharedRoom", "shared_room"]

MAX_LOCAL_BYTES = 1024
"""Of one scratch array of a thread: beyond this it is better in device memory."""


def shared_room(target: Target) -> int:
    """Bytes of shared memory for a block's scratch arrays: what is left beside the room that reductions need, 40 of 48 KiB."""
    return target.block_bytes * 5 // 6


@dataclass(slots=True)
class SharedRoom:
    """Says where a scratch array may live in a mapped tree, and keeps count of shared memory. room: bytes of it."""

    room: int
    used: int = 0

    def __call__(self, node: isl.ScheduleNode, size: int) -> bool:
        """Whether an array of `size` bytes may live at the node: in a thread, in a block's shared memory, or in device memory."""
        above = _marks_above(node)
        below = {mark_name(n).partition(".")[0] for n in nodes(node) if kind_of(n) == Kind.mark}
        if "thread" in above:
            return "thread" not in below and size <= MAX_LOCAL_BYTES
        if "block" in above:
            if "block" in below or self.used + size > self.room:
                return False
            self.used += -(-size // 16) * 16
        return True


def _marks_above(node: isl.ScheduleNode) -> set[str]:
    found = set()
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.mark:
            found.add(mark_name(node).partition(".")[0])
    return found

"""Run as a script: random calls whose operands and `out` end, or begin, at a page that nobody may touch. A stray access is a crash.

python -m tests.einsum_numpy.guard_pages SEED COUNT
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import sys
from typing import Any

import numpy as np

import polyml
from polyml.testing.einsum_calls import RandomChooser, generate_call

_PROTECT = ctypes.CDLL(None, use_errno=True).mprotect
_PROTECT.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_KEPT: list[mmap.mmap] = []


def guarded(array: Any, behind: bool) -> Any:
    """A copy with the same strides; the page behind its last byte, or ahead of its first, is closed."""
    reaches = [stride * max(extent - 1, 0) for stride, extent in zip(array.strides, array.shape, strict=True)]
    below = -sum(min(reach, 0) for reach in reaches)
    span = below + sum(max(reach, 0) for reach in reaches) + array.itemsize
    page = mmap.PAGESIZE
    room = -(-span // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    _KEPT.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _PROTECT(start, page, 0) == 0
    assert _PROTECT(start + page + room, page, 0) == 0
    offset = page + (room - span if behind else 0)
    made: Any = np.ndarray(array.shape, array.dtype, memory, offset + below, array.strides)
    made[...] = array
    return made


def main(seed: int, count: int) -> int:
    chooser = RandomChooser(random.Random(seed))
    done = 0
    while done < count:
        call = generate_call(chooser, malformed=0, others=0, large=True)
        if not isinstance(call.arguments[0], str) or call.keywords:
            continue
        subscripts, *given = call.arguments
        operands = [np.asarray(operand) for operand in given]
        if math.prod(operand.size for operand in operands) > 2**24:
            continue  # NumPy would take long
        try:
            expected = np.einsum(subscripts, *operands)
        except ValueError:
            continue
        for behind in (True, False):
            moved = [guarded(operand, behind) if operand.size else operand for operand in operands]
            assert np.allclose(polyml.einsum(subscripts, *moved), expected, rtol=1e-4, atol=1e-2), call
            if np.ndim(expected) and expected.size:
                out = guarded(np.zeros_like(expected), behind)
                assert polyml.einsum(subscripts, *moved, out=out) is out
                assert np.allclose(out, expected, rtol=1e-4, atol=1e-2), call
        done += 1
    print(f"{done} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

"""What stays in memory of compiled and dropped kernels: resident bytes, bytes in use of the C library's heap, and Python's blocks, as compilations add up.

python -m benchmarks.leaks --compiles 10000 --csv leaks.csv
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
from pathlib import Path

import numpy as np

import polyml

__all__ = ["Sample", "main", "sample"]

TEXT = """def family{number}(x: f32["N K"], w: f32["K M"]):
    y[n, m] = x[n, k] * w[k, m] + {number}
    s = y[n, m]
    return y, s
"""

Sample = tuple[int, int, int]
"""Resident bytes; bytes in use of the heap (0 where the C library does not tell); blocks in use of Python's allocator."""


class _HeapInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def sample() -> Sample:
    """What this process has now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    library = ctypes.CDLL(None)
    used = 0
    if hasattr(library, "mallinfo2"):
        library.mallinfo2.restype = _HeapInfo
        info = library.mallinfo2()
        used = info.uordblks + info.hblkhd
    return resident, used, sys.getallocatedblocks()


def compile_once(number: int) -> None:
    """Compiles a program of its own, calls it, and drops it."""
    x, w = np.full((4, 3), 2, np.float32), np.ones((3, 5), np.float32)
    y, _ = polyml.einsum(TEXT.format(number=number))(x, w)
    assert (y == 6 + number).all()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compiles", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--csv", type=Path, help="where the curve goes")
    asked = parser.parse_args(arguments)
    os.environ["POLYML_CACHE"] = "0"
    step = max(1, asked.compiles // 40)
    for k in range(step):  # what is made once
        compile_once(k)
    rows = [(0, *sample())]
    for k in range(1, asked.compiles + 1):
        compile_once(step + k)
        if k % step == 0:
            rows.append((k, *sample()))
    if asked.csv is not None:
        lines = ["compiles,resident,heap,python_blocks", *(",".join(map(str, row)) for row in rows)]
        asked.csv.write_text("\n".join(lines) + "\n")
    (_, *first), (count, *last) = rows[0], rows[-1]
    resident, heap, blocks = ((b - a) / count for a, b in zip(first, last, strict=True))
    print(
        f"{count} compilations: {resident:.0f} bytes resident, {heap:.0f} bytes of heap, {blocks:.2f} Python blocks each"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

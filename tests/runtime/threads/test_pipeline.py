"""What pipelined loops call: rows are taken in order, stages wait for the row before, and places in the ring are taken again in time."""

import ctypes
import random
import threading
import time

import pytest

from polyml.codegen.llvm.ring import BYTES, RING
from polyml.runtime.support.module import load_support, support

I64 = ctypes.c_int64
STAGES = 5


@pytest.mark.parametrize(
    ("lower", "rows", "step", "threads"), [(-7, 3, 1, 2), (4, 1, 5, 3), (0, 2 * RING + 9, 1, 4), (-30, RING + 1, 16, 3)]
)
def test_no_stage_begins_before_that_of_the_row_before_is_done(lower: int, rows: int, step: int, threads: int) -> None:
    made = load_support(None)
    made.set_threads(threads)
    begin = ctypes.CFUNCTYPE(None, ctypes.c_void_p, I64, I64, I64)(made.symbols["polyml_pipeline"])
    take = ctypes.CFUNCTYPE(I64, ctypes.c_void_p)(made.symbols["polyml_row"])
    stage = ctypes.CFUNCTYPE(None, ctypes.c_void_p, I64, I64)(made.symbols["polyml_stage"])
    done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, I64)(made.symbols["polyml_row_done"])
    memory = ctypes.create_string_buffer(BYTES + 64)
    pipeline = (ctypes.addressof(memory) + 63) // 64 * 64
    upper = lower + rows * step
    begin(pipeline, lower, upper, step)
    finished: dict[int, set[int]] = {}
    faults: list[str] = []
    taken: list[int] = []

    def wanted(row: int, last: int) -> set[int]:
        """The row's stages up to one: rows start and end anywhere, and leave out some."""
        number = (row - lower) // step
        return {k for k in range(number % 3, STAGES - number % 2, 1 + number % 2) if k <= last}

    def run(seed: int) -> None:
        chance = random.Random(seed)
        while (row := take(pipeline)) < upper:
            taken.append(row)
            finished[row] = set()
            for k in sorted(wanted(row, STAGES)):
                stage(pipeline, row, 10 * k)
                late = [r for r in range(max(lower, row - 3 * step), row, step) if not finished[r] >= wanted(r, k)]
                faults.extend(f"stage {k} of row {row} before row {r} is there" for r in late)
                if chance.random() < 0.02:
                    time.sleep(0.001)
                finished[row].add(k)
            done(pipeline, row)

    workers = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not faults
    assert sorted(taken) == list(range(lower, upper, step))


def test_symbols_are_there() -> None:
    names = ("polyml_pipeline", "polyml_row", "polyml_stage", "polyml_row_done")
    assert all(support().symbols[name] for name in names)

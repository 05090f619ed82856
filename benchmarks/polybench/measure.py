"""Interleaved measurement of one kernel: each contender in a process of its own, which sleeps (stopped) while another one runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.polybench import KERNELS
from benchmarks.polybench.contenders import CONTENDERS, Contender, summary

__all__ = ["Result", "measure"]

BUILD_SECONDS = 120.0
LEAST, MOST = 3, 50


@dataclass(slots=True)
class Result:
    """times: of each timed call, in seconds. problem: why there are none, or too few; what is wrong with the results."""

    contender: str
    threads: int
    schedule_s: float = 0.0
    compile_s: float = 0.0
    times: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def seconds(self) -> float:
        """The median; infinity without any."""
        return statistics.median(self.times) if self.times else float("inf")


def measure(
    kernel: str, size: str, contenders: Sequence[Contender], *, threads: int, seconds: float, cap: float, clock: str
) -> list[Result]:
    """All contenders in turns until `seconds` have gone by.

    Args:
        cap: seconds; a contender whose first call takes longer is stopped and dropped.
        clock: "wall", or "cpu": the calling thread's time, of contenders with one thread; less is lost to others on a shared machine.
    """
    workers: list[_Worker] = []
    try:
        expected: list[float] | None = None
        for contender in contenders:
            # One after the other: compilers must not disturb each other's times either.
            workers.append(_Worker(kernel, size, contender, threads if contender.threads == "all" else 1, clock))
            workers[-1].prepare(cap)
            expected = workers[-1].compare(expected)
        start = time.perf_counter()
        for rounds in range(MOST):
            if rounds >= LEAST and time.perf_counter() - start > seconds:
                break
            for worker in workers:
                worker.repeat(seconds / LEAST, rounds)
    finally:
        for worker in workers:
            worker.end()
    return [worker.result for worker in workers]


class _Worker:
    """The parent's end of one contender."""

    def __init__(self, kernel: str, size: str, contender: Contender, threads: int, clock: str) -> None:
        self.result = Result(contender.name, threads)
        self._summary: list[float] = []
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kernel, size, contender.name, threads, clock))
        self._process.start()

    def prepare(self, cap: float) -> None:
        """Builds it and calls it once, which is not counted unless it takes too long to be called again."""
        built = self._answer(BUILD_SECONDS)
        if isinstance(built, tuple):
            self.result.schedule_s, self.result.compile_s = built
            self._pipe.send("run")
            first = self._answer(cap, running=True)
            if isinstance(first, tuple):
                self._first, self._summary = first
        self._pause()

    def compare(self, expected: list[float] | None) -> list[float] | None:
        """Notes a problem when the results are not those of the others."""
        if expected is None or not self._summary:
            return self._summary or expected
        if not np.allclose(self._summary, expected, rtol=1e-6, atol=1e-9):
            self.result.problem = "other results"
        return expected

    def repeat(self, long: float, rounds: int) -> None:
        """One timed call; one whose first call took longer than `long` is called once only."""
        if not self._process.is_alive() or self.result.problem not in ("", "other results"):
            return
        if self._first > long and rounds > 0:
            return
        self._resume()
        self._pipe.send("run")
        answer = self._answer(10 * BUILD_SECONDS)
        if isinstance(answer, tuple):
            self.result.times.append(answer[0])
        self._pause()

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def _answer(self, limit: float, *, running: bool = False) -> object:
        if not self._pipe.poll(limit):
            self.result.problem = f"> {limit:g} s" if running else "compilation takes too long"
            self._process.kill()
            return None
        try:
            answer = self._pipe.recv()
        except EOFError:
            self.result.problem = "crashed"
            return None
        if isinstance(answer, str):
            self.result.problem = answer
            self._process.join()
            return None
        return answer

    def _pause(self) -> None:
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def _resume(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)


def _serve(pipe: Connection, kernel_name: str, size: str, contender_name: str, threads: int, clock: str) -> None:
    """The child: builds, then a call for each message. Arguments that the program writes are restored first, untimed."""
    os.environ["POLYML_CACHE"] = "0"  # compile times are those of a first compilation
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-threads:])
    kernel = KERNELS[kernel_name]
    contender = next(c for c in CONTENDERS if c.name == contender_name)
    original = kernel.arguments(size)
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in original]
    try:
        built = contender.build(kernel, tuple(arguments), threads)
        pipe.send((built.schedule_s, built.compile_s))
        first, pairs = True, list(zip(arguments, original, strict=True))
        while pipe.recv() == "run":
            for argument, value in pairs:
                if isinstance(argument, np.ndarray):
                    np.copyto(argument, value)
            now = time.thread_time if clock == "cpu" and threads == 1 else time.perf_counter
            start = now()
            results = built.run(*arguments)
            taken = now() - start
            pipe.send((taken, summary(results) if first else []))
            if first:
                pairs = [pair for pair in pairs if not np.array_equal(*pair)]
            first = False
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

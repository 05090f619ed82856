"""What a compilation shows of itself: stage timings, prints of the POLYML_DEBUG ladder, and the files of POLYML_DUMP.

The driver opens one `compilation(name)` and, in it, a `stage(name)` around each arrow of the pipeline; stages hand their text to `report`.
Passes themselves never print.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path

from polyml.errors import PolymlError
from polyml.options import current
from polyml.records import dataclass

__all__ = ["Compilation", "StageTime", "compilation", "debug_level", "report", "stage"]


@dataclass(frozen=True, slots=True)
class StageTime:
    """`depth` stages were open around this one; `seconds` includes the stages inside it."""

    name: str
    depth: int
    seconds: float


@dataclass(slots=True)
class Compilation:
    """The record of one compilation (mutable while it runs). clock: seconds, what stages are timed with; times: in order of ending; depth: stages open now."""

    name: str
    clock: Callable[[], float] = time.perf_counter
    times: list[StageTime] = field(default_factory=list)
    depth: int = 0

    def seconds(self, name: str) -> float:
        """Time spent in stages of that name."""
        return sum(row.seconds for row in self.times if row.name == name)

    def __str__(self) -> str:
        return "\n".join(f"{'  ' * row.depth}{row.name:<16} {1e3 * row.seconds:8.2f} ms" for row in self.times)


_CURRENT: ContextVar[Compilation | None] = ContextVar("polyml_compilation", default=None)
_NUMBERS = itertools.count(1)


def debug_level() -> int:
    """The level of the debug ladder in force (Options.debug)."""
    level = current("debug")
    assert isinstance(level, int), "internal: the debug level is a checked option"
    return level


@contextmanager
def compilation(name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[Compilation]:
    """Opens the record of compiling the program `name`; stages and reports inside belong to it. Inside the record of the same program it joins that one."""
    open_now = _CURRENT.get()
    if open_now is not None and open_now.name == name:
        yield open_now
        return
    record = Compilation(name, clock)
    token = _CURRENT.set(record)
    try:
        with stage("total"):
            yield record
    finally:
        _CURRENT.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Times its block; printed at debug level 1, and kept in the record of the compilation."""
    record = _CURRENT.get()
    depth = 0 if record is None else record.depth
    if record is not None:
        record.depth += 1
    clock = time.perf_counter if record is None else record.clock
    start = clock()
    try:
        yield
    finally:
        seconds = clock() - start
        if record is not None:
            record.depth -= 1
            record.times.append(StageTime(name, depth, seconds))
        if debug_level() >= 1:
            owner = "" if record is None else f" {record.name}:"
            print(f"polyml:{owner} {'  ' * depth}{name} {1e3 * seconds:.2f} ms", file=sys.stderr)


def report(title: str, text: str | Callable[[], str], *, level: int, suffix: str = "txt") -> None:
    """Prints `text` when the debug level is at least `level`, and writes it as the next numbered file when POLYML_DUMP names a folder.

    Args:
        text: a function is only called when somebody looks.

    Raises:
        PolymlError: the folder cannot be written.
    """
    folder = current("dump")
    printing = debug_level() >= level
    if not printing and folder is None:
        return
    record = _CURRENT.get()
    name = "" if record is None else record.name
    content = text if isinstance(text, str) else text()
    if printing:
        print(f"polyml: ---- {' '.join(filter(None, (name, title)))} ----\n{content}", file=sys.stderr)
    if isinstance(folder, str):
        path = Path(folder)
        stem = "-".join(filter(None, (f"{next(_NUMBERS):04d}", name, title.replace(" ", "_"))))
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{stem}.{suffix}").write_text(content + "\n")
        except OSError as error:
            raise PolymlError(
                f"nothing can be dumped into {folder}: {error.strerror}", hint="name a folder that can be written"
            ) from None

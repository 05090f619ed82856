"""Options of a compilation, and the one table of POLYML_* environment variables.

Later in this list wins: the fields' defaults; the environment; `with overridden(...)`; keywords of `@polyml.einsum(...)`.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, get_args

from polyml.errors import PolymlError
from polyml.records import dataclass
from polyml.target import Target

__all__ = ["VARIABLES", "CostName", "EnvironmentVariable", "FusionPolicy", "Options", "Scheduler", "overridden"]

Scheduler = Literal["ilp", "isl", "written"]
FusionPolicy = Literal["none", "smart", "maximal"]
CostName = Literal["coefficients", "parallelism", "alignment", "satisfaction", "contiguity", "order", "reuse"]

MOST = 1 << 31
"""Iterations of a tile: with more, values of loops over tiles could leave 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to compile. Hashable: it is part of a kernel's cache key.

    target: the machine; None: this one (`machine` says which).
    threads: how many threads a kernel may use; None: the cores that were available when the process loaded its first one.
    precise: keep the written order of floating-point operations: no FMA, no reassociation.
    atomics: (CUDA) sums over several blocks, and into computed elements, by atomic operations: more threads have work, and the order of a sum is another each time.
    fusion: ops may share a region, and its statements share loops: "none", "smart" (True: where nothing is lost by it), "maximal" (wherever it is legal);
        False: every op is a region of its own.
    scheduler: polyml's integer programs, isl's scheduler, or the order as written. costs: what "ilp" decides by, the most important first (names of
        polyml.schedule.ilp.costs); None: its own list.
    vectorize, parallel: whether to do so.
    tile_sizes: iterations per cache tile and dimension, outermost first; None: from the cost model; (): no tiling.
    register_tile: iterations per register tile, likewise.
    dynamic: sizes that stay symbolic: True for all, or their names; "auto": none, until the program has seen many shapes.
    verify: check every stage's output, schedules included, even where it costs time.
    budget: isl operations that one phase of one region may take before its fallback.
    debug: the ladder below. dump: a folder for one numbered file per stage, or None.

    The debug ladder, each level with all below it: 0 nothing; 1 stage timings; 2 choices; 3 schedule trees; 4 generated code;
    5 every pass that changed something; 6 the solver.
    """

    target: Target | None = None
    threads: int | None = None
    precise: bool = False
    atomics: bool = False
    fusion: bool | FusionPolicy = True
    scheduler: Scheduler = "ilp"
    costs: tuple[CostName, ...] | None = None
    vectorize: bool = True
    parallel: bool = True
    tile_sizes: tuple[int, ...] | None = None
    register_tile: tuple[int, ...] | None = None
    dynamic: bool | tuple[str, ...] | Literal["auto"] = "auto"
    verify: bool = False
    budget: int = 20_000_000
    debug: int = 0
    dump: str | None = None

    @property
    def machine(self) -> Target:
        """The target, or this machine."""
        return Target.host() if self.target is None else self.target

    @property
    def of_code(self) -> Options:
        """What of them decides about code: a kernel on disk serves all options that agree in it."""
        return replace(self, target=self.machine, dynamic=False, verify=False, debug=0, dump=None)

    @property
    def fusion_policy(self) -> FusionPolicy:
        """How statements of one region are fused."""
        return self.fusion if isinstance(self.fusion, str) else "smart" if self.fusion else "none"

    @staticmethod
    def make(**keywords: object) -> Options:
        """The options in force here, with `keywords` on top.

        Raises:
            PolymlError: unknown name, or a value that does not fit.
        """
        chosen = {**_OVERRIDES.get(), **keywords}
        merged = {**_environment(), **chosen}
        checked: dict[str, object] = {}
        for name, value in merged.items():
            if name not in _CHECKS:
                import difflib  # for who mistypes

                close = difflib.get_close_matches(name, _CHECKS, n=1)
                raise PolymlError(
                    f'unknown option "{name}"',
                    hint=f'did you mean "{close[0]}"?' if close else f"options: {', '.join(_CHECKS)}",
                )
            checked[name] = _CHECKS[name](f"option {name}" if name in chosen else _VARIABLE_OF[name], value)
        return Options(**checked)  # type: ignore[arg-type]  # each value went through its field's check


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """`name` in the environment sets the option `field` (None: read by the runtime where it is needed)."""

    name: str
    field: str | None
    meaning: str


VARIABLES: tuple[EnvironmentVariable, ...] = (
    EnvironmentVariable("POLYML_DEBUG", "debug", "0..6: what to print while compiling (Options has the ladder)"),
    EnvironmentVariable("POLYML_DUMP", "dump", "folder that gets one numbered file per stage"),
    EnvironmentVariable(
        "POLYML_NUM_THREADS", "threads", "threads of a kernel; default: the cores this process may use"
    ),
    EnvironmentVariable("POLYML_TARGET", "target", 'name of the target; default "host"'),
    EnvironmentVariable("POLYML_SCHEDULER", "scheduler", f"one of {', '.join(get_args(Scheduler))}"),
    EnvironmentVariable(
        "POLYML_FUSION", "fusion", f"0: every op is a region of its own; {', '.join(get_args(FusionPolicy))}"
    ),
    EnvironmentVariable("POLYML_COSTS", "costs", "cost functions of the ilp scheduler, comma-separated"),
    EnvironmentVariable("POLYML_VECTORIZE", "vectorize", "0: no vector loops"),
    EnvironmentVariable("POLYML_PARALLEL", "parallel", "0: no parallel loops"),
    EnvironmentVariable("POLYML_PRECISE", "precise", "1: keep the written order of floating-point operations"),
    EnvironmentVariable("POLYML_ATOMICS", "atomics", "1: on a GPU sums may use atomic operations, in no fixed order"),
    EnvironmentVariable("POLYML_VERIFY", "verify", "1: check every stage's output"),
    EnvironmentVariable("POLYML_BUDGET", "budget", "isl operations per phase before its fallback"),
    EnvironmentVariable(
        "POLYML_CACHE", None, "folder of compiled kernels; 0: none; default, and 1: polyml in the user's cache folder"
    ),
    EnvironmentVariable("POLYML_CACHE_BYTES", None, "bound of that folder, in bytes"),
    EnvironmentVariable("POLYML_THREADS", None, "pool (default): polyml's own threads; openmp: an OpenMP runtime's"),
    EnvironmentVariable("POLYML_CUDA_COMPILER", None, "nvcc or nvrtc; default: NVRTC where it is installed, else nvcc"),
    EnvironmentVariable("POLYML_OPENMP", None, "with POLYML_THREADS=openmp: the library to use, a path or a name"),
)

_OVERRIDES: ContextVar[Mapping[str, object]] = ContextVar("polyml_overrides", default={})  # noqa: B039 (never mutated)


of_blocks = _OVERRIDES.get
"""What the blocks of `overridden` around say, by option: nothing outside of them."""


@contextmanager
def overridden(**values: object) -> Iterator[None]:
    """Within the block (and this thread or task) these options hold unless a decorator says otherwise."""
    unknown = set(values) - set(_CHECKS)
    if unknown:
        raise PolymlError(f'unknown option "{min(unknown)}"', hint=f"options: {', '.join(_CHECKS)}")
    token = _OVERRIDES.set({**_OVERRIDES.get(), **values})
    try:
        yield
    finally:
        _OVERRIDES.reset(token)


def current(name: str) -> object:
    """The value of one option in force here: cheap enough to be asked often."""
    overrides = _OVERRIDES.get()
    if name in overrides:
        return _CHECKS[name](f"option {name}", overrides[name])
    return of_process(name)


def of_process(name: str) -> object:
    """The value of one option where no block and no decorator says otherwise."""
    variable = _VARIABLE_OF.get(name, "")
    text = os.environ.get(variable)
    return _DEFAULTS[name] if text is None or text == "" else _CHECKS[name](variable, text)


def _environment() -> dict[str, object]:
    found = {row.field: os.environ.get(row.name, "") for row in VARIABLES if row.field is not None}
    return {field: text for field, text in found.items() if text != ""}


def _refuse(name: str, value: object, wanted: str) -> PolymlError:
    """name: as the user wrote it, of an option or of the variable that sets it."""
    return PolymlError(f"{name} = {value!r} is not {wanted}")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("0", "1"):
        return value == "1"
    raise _refuse(name, value, "a bool (in the environment: 0 or 1)")


def _integer(low: int, high: int, *, optional: bool = False) -> Callable[[str, object], int | None]:
    def check(name: str, value: object) -> int | None:
        if value is None and optional:
            return None
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value):
            value = int(value)
        number = _index(value)
        if number is None or not low <= number <= high:
            raise _refuse(name, value, f"an integer in {low}..{high}")
        return number

    return check


def _index(value: object) -> int | None:
    """Python's integers and NumPy's; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # what is none raises TypeError
    except TypeError:
        return None


def _sizes(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, tuple | list):
        numbers = [number for item in value if (number := _index(item)) is not None and 1 <= number <= MOST]
        if len(numbers) == len(value):
            return tuple(numbers)
    raise _refuse(name, value, f"a tuple of integers in 1..{MOST}, or None")


def _dynamic(name: str, value: object) -> bool | tuple[str, ...] | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool):
        return value
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise _refuse(name, value, 'a bool, "auto" or a tuple of names of sizes')


def _scheduler(name: str, value: object) -> Scheduler:
    match value:
        case "ilp" | "isl" | "written":
            return value
        case _:
            raise _refuse(name, value, f"one of {', '.join(get_args(Scheduler))}")


def _fusion(name: str, value: object) -> bool | FusionPolicy:
    match value:
        case "none" | "smart" | "maximal":
            return value
        case True | False | "0" | "1":
            return _flag(name, value)
        case _:
            raise _refuse(name, value, f"a bool or one of {', '.join(get_args(FusionPolicy))}")


def _costs(name: str, value: object) -> tuple[CostName, ...] | None:
    known: tuple[CostName, ...] = get_args(CostName)
    if isinstance(value, str):
        value = tuple(value.split(","))
    if value is None:
        return None
    if isinstance(value, tuple | list) and value and all(v in known for v in value) and len(set(value)) == len(value):
        return tuple(value)
    raise _refuse(name, value, f"a list of different names of {', '.join(known)}")


def _target(name: str, value: object) -> Target | None:
    match value:
        case None | Target():
            return value
        case str():
            return None if value == "host" else Target(value)
        case _:
            raise _refuse(name, value, "a Target or the name of one")


def _folder(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str | Path):
        return None if value is None else os.path.expanduser(value)
    raise _refuse(name, value, "a path")


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "target": _target,
    "threads": _integer(1, 4096, optional=True),
    "precise": _flag,
    "atomics": _flag,
    "fusion": _fusion,
    "scheduler": _scheduler,
    "costs": _costs,
    "vectorize": _flag,
    "parallel": _flag,
    "tile_sizes": _sizes,
    "register_tile": _sizes,
    "dynamic": _dynamic,
    "verify": _flag,
    "budget": _integer(1, 2**62),
    "debug": _integer(0, 6),
    "dump": _folder,
}
_DEFAULTS: dict[str, object] = {field.name: field.default for field in fields(Options)}
_VARIABLE_OF: dict[str, str] = {row.field: row.name for row in VARIABLES if row.field is not None}

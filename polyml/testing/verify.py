"""`verify`: any program held against the reference interpreter, element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import polyml
from polyml.api import Einsum
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.syntax import Program
from polyml.einsum_numpy.calls import NUMPY_KEYWORDS, refusal_of
from polyml.einsum_numpy.extended import is_extended, program_of, request_of
from polyml.errors import ArgumentError, PolymlError
from polyml.records import dataclass
from polyml.runtime.arguments import prepare
from polyml.runtime.dispatch import wanted_of
from polyml.runtime.foreign.arrays import viewed
from polyml.testing.cases import Argument, copy_with_layout
from polyml.testing.rounding import least_step, unit
from polyml.testing.watch import Instance, Record, Watch

__all__ = ["Report", "Worst", "verify"]

Array = npt.NDArray[np.generic]

_SLACK = 2.0
"""How many times the bound of a plain evaluation a compiled one may be off by: it rewrites expressions."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is farthest off, relative to what is allowed.

    name: its tensor, a result or an updated parameter. expected: in the element type of the tensor. error: absolute, against the exacter value that the interpreter
    computes in a wider type. ulps: the same in units of the last place of `expected`. allowed: the largest error that rounding explains.
    instances: some that computed it, the last one last, each with its statement; count: how many did since it was last overwritten.
    """

    name: str
    position: tuple[int, ...]
    actual: Any
    expected: Any
    error: float
    ulps: float
    allowed: float
    instances: tuple[Instance, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        place = f"{self.name}[{', '.join(map(str, self.position))}]" if self.position else self.name
        size = "" if math.isnan(self.ulps) else f", {self.ulps:.3g} ulp"
        lines = [
            f"worst: {place} is {self.actual!r}, expected {self.expected!r}",
            f"  error {self.error:.3g}{size}; rounding explains {self.allowed:.3g}",
        ]
        if self.count > len(self.instances):
            lines.append(f"  computed by {self.count} instances, among them")
        for instance in self.instances:
            lines.append(f"  computed at {instance}")
        for span in dict.fromkeys(instance.span for instance in self.instances):
            lines.append(span.excerpt())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; true when nothing is wrong.

    elements: how many were compared. wrong: how many are farther off than rounding explains. open: how many could not be judged, since a condition, an index or an
    overflow hangs on the rounding. fault: what makes a comparison impossible: a dtype, a shape, an error that only one side raises.
    """

    program: str
    elements: int = 0
    wrong: int = 0
    open: int = 0
    worst: Worst | None = None
    fault: str | None = None

    def __bool__(self) -> bool:
        return self.fault is None and not self.wrong

    def __str__(self) -> str:
        if self.fault is not None:
            return f"{self.program}: {self.fault}"
        unsure = f", {self.open} not judged: they hang on a rounding" if self.open else ""
        verdict = (
            f"{self.wrong} of {self.elements} elements are wrong" if self.wrong else f"{self.elements} elements agree"
        )
        return "\n".join([f"{self.program}: {verdict}{unsure}", *([str(self.worst)] if self.worst else [])])


def verify(
    program: Einsum | str | Callable[..., object],
    *args: object,
    computed_by: Callable[..., object] | None = None,
    most: int = 3_000_000,
    **options: Any,
) -> Report:
    """Compares a program, as it is compiled, with the reference interpreter on these arguments, which stay as they are.

    Args:
        program: an einsum program, its text, a function to decorate, or subscripts: whatever polyml.einsum takes.
        computed_by: what computes the results instead: a callable that takes copies of the arguments, and updates them as the program does.
        most: values that the interpreter may evaluate (30,000 to 45,000 a second).
        options: as polyml.einsum takes them with the program.

    An element is right when its error is within what rounding explains: a bound that the interpreter carries along with each value, from the element types, the
    lengths of the sums and the sizes of their terms (polyml/testing/rounding.py).

    Raises:
        PolymlError: the program is wrong, the arguments do not fit, or have too many instances.
    """
    reference, compiled = _both(program, args, options)
    wanted = wanted_of(reference)
    if len(wanted) != len(args):
        raise ArgumentError(f"{reference.name} takes {len(wanted)} arguments, not {len(args)}")
    given: list[Any] = [prepare(one, viewed(value)).value for one, value in zip(wanted, args, strict=True)]
    record = Record([most])
    expected, error = _outcome(
        lambda: interpret(_as_written(reference), *_copies(given), wide=True, run=functools.partial(Watch, record))
    )
    if error is not None and record.most[0] < 0:
        raise error
    own = _copies(given)
    actual, own_error = _outcome(lambda: (computed_by or compiled)(*own))
    if error is not None or own_error is not None:
        return Report(reference.name, fault=_other_error(error, own_error))
    del expected  # its tensors are in the record, not yet rounded
    results = actual if isinstance(actual, tuple) else () if actual is None else (actual,)
    if len(results) != len(record.returned):
        return Report(reference.name, fault=f"{len(results)} results, expected {len(record.returned)}")
    tensors = {name: np.asarray(viewed(value)) for (name, _), value in zip(record.returned, results, strict=True)}
    for one, value, before in zip(wanted, own, given, strict=True):
        if one.rank is not None and (record.assigned(one.name) or not np.array_equal(value, before, equal_nan=True)):
            tensors.setdefault(one.name, value)
    return _compared(reference.name, record, tensors)


def _both(program: Any, args: Sequence[object], options: dict[str, Any]) -> tuple[Program, Callable[..., object]]:
    """The program for the interpreter, and the callable to be judged."""
    if isinstance(program, Einsum):
        if options:
            raise ArgumentError("the program has its options already", hint="give them to polyml.einsum")
        return program.program, program
    if isinstance(program, str) and (refusal_of(program) is None or (is_extended(program) and "def " not in program)):
        if taken := sorted(NUMPY_KEYWORDS & set(options)):
            raise ArgumentError(f"verify takes no {taken[0]}=", hint="leave it out")
        request, more = request_of(program, args, options.get("semiring", "plus_times"), options.get("where"))
        if len(more) > len(args):
            raise ArgumentError("verify takes no where=", hint="write the program out: where(mask[..], .., 0)")
        return program_of(request), lambda *own: polyml.einsum(program, *own, **options)
    made: Einsum = polyml.einsum(program, **options)
    return made.program, made


def _as_written(program: Program) -> Program:
    """The parsed form of a resolved program, with what it found in its surroundings."""
    inner = {name: _as_written(callee) for name, callee in program.programs.items()}
    return replace(parse(program.source), captured=program.captured, programs=inner)


def _copies(values: Sequence[Argument]) -> list[Any]:
    return [copy_with_layout(value) if isinstance(value, np.ndarray) else value for value in values]


def _outcome(call: Callable[[], object]) -> tuple[object, Exception | None]:
    try:
        return call(), None
    except (PolymlError, IndexError, ValueError, TypeError, ArithmeticError) as error:
        return None, error


def _other_error(expected: Exception | None, actual: Exception | None) -> str | None:
    """None when both raise, and the same class or a nearer one."""
    if expected is None:
        return f"raises {type(actual).__name__}: {actual}; the interpreter computes it"
    if actual is None:
        return f"is computed; the interpreter raises {type(expected).__name__}: {expected}"
    if isinstance(actual, type(expected)) or isinstance(expected, type(actual)):
        return None
    return f"raises {type(actual).__name__}: {actual}; the interpreter {type(expected).__name__}: {expected}"


def _compared(program: str, record: Record, tensors: dict[str, Array]) -> Report:
    cells = {**record.cells, **dict(record.returned)}
    report, farthest = Report(program), -1.0
    for name, actual in tensors.items():
        exact, dtype = cells[name].values, cells[name].type.dtype
        if actual.dtype != dtype.numpy or actual.shape != exact.shape:
            found = f"{actual.dtype} {actual.shape}, expected {dtype.numpy} {exact.shape}"
            return Report(program, fault=f"{name} is {found}")
        bounds = record.bounds[record.enter(exact)]
        sizes = np.where(np.isfinite(exact), np.abs(exact).astype(np.float64), 0)
        allowed = _SLACK * bounds + unit(dtype) * sizes + least_step(dtype)
        error = _errors(actual, exact)
        judged = np.isfinite(bounds)
        with np.errstate(invalid="ignore"):
            relative = error / np.maximum(allowed, 1e-300)
        ratio = np.where(judged, np.where(error > allowed, 1 + error, relative), -1.0)
        wrong = judged & (error > allowed)
        report = replace(
            report,
            elements=report.elements + actual.size,
            wrong=report.wrong + int(wrong.sum()),
            open=report.open + int((~judged).sum()),
        )
        if actual.size and float(ratio.max()) > farthest:
            farthest = float(ratio.max())
            at = tuple(map(int, np.unravel_index(int(ratio.argmax()), ratio.shape)))
            report = replace(report, worst=_worst(name, at, actual, exact, error, allowed, record))
    return report


def _errors(actual: Array, exact: Array) -> npt.NDArray[np.float64]:
    """|actual - exact|: 0 where both are the same infinity or no number, infinite where only one is."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(actual.dtype)
        if actual.dtype.kind == "c":
            parts = (_errors(np.real(actual), np.real(exact)), _errors(np.imag(actual), np.imag(exact)))
            return np.hypot(*parts)
        if actual.dtype.kind != "f" and actual.dtype.name != "bfloat16":
            return np.abs(actual.astype(np.longdouble) - rounded.astype(np.longdouble)).astype(np.float64)
        same = (actual == rounded) & ~np.isfinite(rounded) | np.isnan(actual) & np.isnan(rounded)
        apart = np.abs(actual.astype(np.longdouble) - exact.astype(np.longdouble)).astype(np.float64)
        return np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))


def _worst(
    name: str,
    at: tuple[int, ...],
    actual: Array,
    exact: Array,
    error: npt.NDArray[np.float64],
    allowed: npt.NDArray[np.float64],
    record: Record,
) -> Worst:
    key = record.enter(exact)
    writers = record.writers[key].get(at)
    instances = tuple(writers.some) if writers is not None else ()
    if not instances and key in record.fills:
        instances = (Instance(record.fills[key], {}, {}),)
    with np.errstate(all="ignore"):
        rounded = exact[at].astype(actual.dtype)
        ulps = float(error[at] / np.spacing(np.abs(rounded))) if actual.dtype.kind == "f" else math.nan
    return Worst(
        name=name,
        position=at,
        actual=actual[at],
        expected=rounded,
        error=float(error[at]),
        ulps=ulps,
        allowed=float(allowed[at]),
        instances=instances,
        count=writers.count if writers is not None else 0,
    )

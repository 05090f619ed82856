"""The PolymlError family: every fault of a user's program or arguments raises one of these.

A message has four parts: what was asked; what is wrong, with the values; where (source line and caret); what would fix it.
Broken invariants of polyml itself are `assert`s whose text starts with "internal:".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyml.records import dataclass

if TYPE_CHECKING:
    from polyml.source import Span

__all__ = [
    "ArgumentError",
    "BoundsError",
    "CodegenError",
    "DTypeError",
    "DeviceUnavailableError",
    "EinsumSyntaxError",
    "IllegalScheduleError",
    "NotAffineError",
    "PolymlError",
    "SchedulerFailed",
    "ShapeError",
    "SubscriptError",
    "SubscriptsSyntaxError",
    "TransformError",
    "UnboundedDomainError",
    "Violation",
]


class PolymlError(Exception):
    """Base of all errors that polyml raises about a program, its arguments, a schedule or the machine.

    Args:
        message: what was asked, and what is wrong with the values.
        span: where in the user's program; its line and a caret are appended to the text.
        hint: what would fix it.
    """

    def __init__(self, message: str, *, span: Span | None = None, hint: str | None = None) -> None:
        self.message = message
        self.span = span
        self.hint = hint
        parts = [message]
        if span is not None:
            parts.append(span.excerpt())
        if hint is not None:
            parts.append(f"hint: {hint}")
        super().__init__("\n".join(parts))


class EinsumSyntaxError(PolymlError, SyntaxError):
    """The program text is not in the language of docs/language.md."""


class SubscriptsSyntaxError(EinsumSyntaxError, ValueError):
    """The subscripts are not in numpy.einsum's form; NumPy raises ValueError for them, and so this is one."""


class ShapeError(PolymlError, ValueError):
    """Ranks, sizes or index ranges do not agree."""


class DTypeError(PolymlError, TypeError):
    """An element type is not supported, or does not fit where it is used."""


class ArgumentError(PolymlError, TypeError):
    """The arguments of a call do not fit the parameters: their number, names, kinds, or memory that may not be written."""


class SubscriptError(PolymlError, IndexError):
    """A gathered index, known only while the program runs, leaves its tensor."""


class BoundsError(ShapeError):
    """A subscript leaves its tensor; the message names a witness instance."""


class NotAffineError(PolymlError):
    """A subscript, condition or bound is not quasi-affine in indices, loop variables and sizes."""


class UnboundedDomainError(ShapeError):
    """The range of an index follows from nothing."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A dependence that a schedule breaks. kind: flow, anti, output or reduction. source, sink: one pair of instances, `S[i = 0, j = 1]`.
    what: how the schedule runs them."""

    kind: str
    source: str
    sink: str
    what: str

    @property
    def statements(self) -> tuple[str, str]:
        """Names of the two statements."""
        return self.source.partition("[")[0], self.sink.partition("[")[0]


class IllegalScheduleError(PolymlError):
    """A schedule violates a dependence; the message names a witness pair of instances, `violation` has it apart where there is one."""

    def __init__(
        self, message: str, *, span: Span | None = None, hint: str | None = None, violation: Violation | None = None
    ) -> None:
        super().__init__(message, span=span, hint=hint)
        self.violation = violation


class TransformError(PolymlError, ValueError):
    """A transformation was asked for that does not fit the schedule tree: no such statement or loop, or loops that are not nested as it needs."""


class SchedulerFailed(PolymlError):
    """No schedule was found within the budget and the written order is not allowed either."""


class CodegenError(PolymlError):
    """A schedule that is legal cannot be turned into code for this target."""


class DeviceUnavailableError(PolymlError, RuntimeError):
    """The device, its driver or its compiler is missing, or this machine is another one than the target; the message says which, and the remedy."""

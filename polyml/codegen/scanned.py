"""What scanning a schedule tree gives: loops, conditions and marks in order of execution, with statement instances at the leaves.

All is said in iterators `c0`, `c1`, ..., one per schedule dimension. isl makes such code of any tree (`isl_ast.py`), `boxes.py` of trees over boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyml.expressions import Expr
from polyml.records import dataclass
from polyml.scop.scop import Statement
from polyml.sets.affine import Affine

__all__ = [
    "BAND_END", "Choice", "Code", "Instance", "Loop", "Marked", "Together", "Variant", "has_own_loop", "instances_in", "loops_in",
]  # fmt: skip

BAND_END = "end of band"
"""The mark below the band of a marked loop."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The statement's indices, and the offsets of its local arrays, where `condition` holds (None: always)."""

    condition: Expr | None
    indices: dict[str, Affine]
    offsets: dict[str, tuple[Affine, ...]]


@dataclass(frozen=True, slots=True)
class Instance:
    """A statement where the code executes it. One variant, or several whose conditions exclude each other (a schedule by cases).
    counts: of iterators around it that count steps, what a step stands for."""

    statement: Statement
    variants: tuple[Variant, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Loop:
    """`for (iterator = lower; iterator < upper; iterator += step)`; a degenerate loop has the one iteration `lower`."""

    iterator: str
    lower: Affine
    upper: Affine
    step: int
    degenerate: bool
    body: Code


@dataclass(frozen=True, slots=True)
class Choice:
    """`if (condition) then else otherwise`."""

    condition: Expr
    then: Code
    otherwise: Code | None = None


@dataclass(frozen=True, slots=True)
class Marked:
    """What stands below a mark of the schedule tree."""

    text: str
    body: Code


@dataclass(frozen=True, slots=True)
class Together:
    """One after the other."""

    parts: tuple[Code, ...]


Code = Instance | Loop | Choice | Marked | Together


def instances_in(code: Code) -> Iterator[Instance]:
    """The instances, in order."""
    return (part for part in _walk(code) if isinstance(part, Instance))


def loops_in(code: Code) -> Iterator[Loop]:
    """The loops that iterate, outermost first."""
    return (part for part in _walk(code) if isinstance(part, Loop) and not part.degenerate)


def has_own_loop(code: Code) -> bool:
    """Whether a loop, degenerate ones included, stands below a band's mark and above its `BAND_END`."""
    match code:
        case Marked():
            return code.text != BAND_END and has_own_loop(code.body)
        case Choice():
            return has_own_loop(code.then) or (code.otherwise is not None and has_own_loop(code.otherwise))
        case Together():
            return any(map(has_own_loop, code.parts))
        case _:
            return isinstance(code, Loop)


def _walk(code: Code) -> Iterator[Code]:
    stack: list[Code] = [code]
    while stack:
        part = stack.pop()
        yield part
        match part:
            case Together():
                stack.extend(reversed(part.parts))
            case Loop() | Marked():
                stack.append(part.body)
            case Choice():
                if part.otherwise is not None:
                    stack.append(part.otherwise)
                stack.append(part.then)
            case Instance():
                pass

"""Loops that carry a linear recurrence of first order, x[j] = a * x[j - 1] + p[j] or x[j] = max(a + x[j - 1], p[j]), get lanes: affine functions compose, so the steps of a whole vector are
composed in a logarithmic number of operations, and what is carried from vector to vector is one value (llvm/reductions/scan.py).

Source: Kogge and Stone, "A parallel algorithm for the efficient solution of a general class of recurrence equations" (IEEE Trans. Computers, 1973);
Blelloch, "Prefix sums and their applications" (1990). Sums are reassociated, those that maxima and minima are of among them; maxima and minima themselves and integers are not changed by that.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Scan, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions, walk_nodes
from polyml.dtypes import boolean, f64, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, reads_of, walk
from polyml.linear import recurrence_of, second_order_of
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine

__all__ = ["find_scans"]

_LANES = 4
"""Fewer lanes gain nothing: composing takes as long as a few steps of the loop."""


def find_scans(function: Function, *, vector_bytes: int, precise: bool = False) -> tuple[Function, tuple[Note, ...]]:
    """The function with sequential innermost loops of one assignment, which carry a recurrence, as vector loops with a `Scan`.

    Rewrite:
        for (j = 1; j < n; j++) x[j] = (x[j - 1] + y[j]) / 2;
        -> register carry; carry = x[0]; vector for (j = 1; j < n; j++) x[j] = scan_sum(carry, 0.5, y[j] * 0.5);

    Args:
        vector_bytes: of one vector register.
        precise: floating-point sums keep their order.
    """
    taken = names_in(function)
    pass_ = _Scans(vector_bytes, precise, taken, [])
    return map_loops(function, pass_.scan), tuple(pass_.notes)


@dataclass(frozen=True, slots=True)
class _Scans:
    vector_bytes: int
    precise: bool
    taken: set[str]
    notes: list[Note]

    def scan(self, loop: For, ranges: Ranges, _: For | None) -> Node | None:
        """What takes the loop's place; None where loops inside may be recurrences."""
        if loop.kind in ("vector", "jam"):
            return loop
        if any(isinstance(inner, For) for inner in walk_nodes(loop.body)) or loop.kind != "sequential":
            return None
        match loop.body:
            case (Assign(reduction=None, scan=None, across=False) as assign,) if loop.step == 1:
                pass
            case _:
                return loop
        dtype = assign.value.dtype
        before = _before(assign, loop, ranges.enter(loop))
        lanes = self.vector_bytes // max(e.dtype.itemsize for e in (assign.value, *reads_of(assign.value)))
        trips = ranges.constant(loop.upper - loop.lower)
        if lanes < _LANES or (trips is not None and trips < 2 * lanes):
            return loop
        if before is None:
            return self.second_order(loop, assign, ranges)
        found = recurrence_of(assign.value, before)
        if found is None or (self.precise and not found.is_exact):
            return loop
        carry = fresh(f"{assign.target.variable}_carry", self.taken)
        step = replace(assign, value=found.rest, reduction=found.reduction, scan=Scan(carry, found.factor, found.reset))
        first = tuple(s.substitute({loop.variable: loop.lower}) for s in before.subscripts if isinstance(s, Affine))
        body: tuple[Node, ...] = (
            Assign(target=Place(carry, ()), value=Read(before.tensor, first, dtype)),
            replace(loop, kind="vector", factor=2, body=(step,)),
        )
        if not ranges.is_positive(loop.upper - loop.lower):
            some = Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean)
            body = (If(condition=some, then=body),)
        reassociated = "" if found.is_exact else ", reassociated"
        self.notes.append(Note("scan", loop.variable, f"the recurrence of {assign.target} in lanes{reassociated}"))
        return Allocate(variable=Variable(name=carry, dtype=dtype, shape=(), scope="register"), body=body)

    def second_order(self, loop: For, assign: Assign, ranges: Ranges) -> Node:
        """The loop as a scan where each element is made of the last two, by factors that are the same for all."""
        pair = _last_two(assign, loop, ranges.enter(loop))
        found = None if pair is None or self.precise else second_order_of(assign.value, *pair)
        if pair is None or found is None:
            return loop
        if any(_changes(factor, assign, loop) for factor in (found.first, found.second)):
            return loop
        dtype = assign.value.dtype
        carry, earlier = (fresh(f"{assign.target.variable}_{name}", self.taken) for name in ("carry", "earlier"))
        step = replace(assign, value=found.rest, scan=Scan(carry, found.first, second=found.second, earlier=earlier))
        starts: list[Assign] = []
        for name, read in zip((carry, earlier), pair, strict=True):
            places = tuple(s.substitute({loop.variable: loop.lower}) for s in read.subscripts if isinstance(s, Affine))
            value = Read(read.tensor, places, dtype)
            starts.append(Assign(target=Place(name, ()), value=value if dtype == f64 else Apply("cast", (value,), f64)))
        inner = Allocate(
            variable=Variable(name=earlier, dtype=f64, shape=(), scope="register"),
            body=(starts[1], replace(loop, kind="vector", factor=1, body=(step,))),
        )
        body: tuple[Node, ...] = (starts[0], inner)
        if not ranges.is_positive(loop.upper - loop.lower):
            some = Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean)
            body = (If(condition=some, then=body),)
        self.notes.append(
            Note("scan", loop.variable, f"the recurrence of second order of {assign.target} in lanes, reassociated")
        )
        return Allocate(variable=Variable(name=carry, dtype=f64, shape=(), scope="register"), body=body)


def _changes(factor: Expr, assign: Assign, loop: For) -> bool:
    """Whether iterations may have different values of the factor, or ones whose powers are beyond all numbers."""
    if any(read.tensor == assign.target.variable or read.subscripts for read in reads_of(factor)):
        return True
    values = (node for node in walk(factor) if isinstance(node, IndexValue))
    if any(loop.variable in value.affine.variables() for value in values):
        return True
    return isinstance(factor, Const) and not abs(factor.value) <= _LARGEST


_LARGEST = 16.0
"""Of constant factors of second order, whose powers up to the number of lanes are made."""


def _last_two(assign: Assign, loop: For, ranges: Ranges) -> tuple[Read, Read] | None:
    """The reads of the elements that the last iteration and the one before it wrote; None when there are not both, or what else the loop reads does not allow lanes."""
    found: dict[int, Read] = {}
    for read in (r for expr in expressions(assign) for r in reads_of(expr)):
        if read.tensor != assign.target.variable:
            continue
        back = _steps_back(read, assign, loop, ranges)
        if back is None:
            return None
        if back and (back > 2 or found.setdefault(back, read) != read):
            return None
    return (found[1], found[2]) if len(found) == 2 else None


def _steps_back(read: Read, assign: Assign, loop: For, ranges: Ranges) -> int | None:
    """How many iterations ago the element was written; 0 for one that these do not write before it is read, None where that is not known."""
    pairs = list(zip(read.subscripts, assign.target.subscripts, strict=True))
    along = [d for d, (_, s) in enumerate(pairs) if not isinstance(s, Affine) or loop.variable in s.variables()]
    if len(along) != 1:
        return None
    written = assign.target.subscripts[along[0]]
    sign = written.stride(loop.variable) if isinstance(written, Affine) else None
    if sign not in (1, -1):
        return None
    differences = [a - b if isinstance(a, Affine) and isinstance(b, Affine) else None for a, b in pairs]
    others = (d for k, d in enumerate(differences) if k != along[0])
    if any(d is not None and _never_zero(d, loop, ranges) for d in others):
        return 0
    if any(d is None or not d.is_constant for d in differences):
        return None
    ahead = differences[along[0]]
    assert ahead is not None, "internal: a difference that is not known"
    return max(0, -ahead.constant * sign)


def _before(assign: Assign, loop: For, ranges: Ranges) -> Read | None:
    """The read of the element that the last iteration wrote; None when there is none, or what else the loop reads does not allow lanes."""
    target = assign.target
    along = [d for d, s in enumerate(target.subscripts) if not isinstance(s, Affine) or loop.variable in s.variables()]
    if len(along) != 1:
        return None
    (dimension,) = along
    subscript = target.subscripts[dimension]
    sign = subscript.stride(loop.variable) if isinstance(subscript, Affine) else None
    if sign not in (1, -1):
        return None
    found: Read | None = None
    for read in (r for expr in expressions(assign) for r in reads_of(expr)):
        if read.tensor != target.variable:
            continue
        pairs = [(a, b) for a, b in zip(read.subscripts, target.subscripts, strict=True)]
        differences = [a - b if isinstance(a, Affine) and isinstance(b, Affine) else None for a, b in pairs]
        if any(d is not None and k != dimension and _never_zero(d, loop, ranges) for k, d in enumerate(differences)):
            continue
        ahead = differences[dimension]
        if ahead is None or not ahead.is_constant or any(d is None or not d.is_constant for d in differences):
            return None
        steps = ahead.constant * sign
        if steps < -1 or (steps == -1 and found not in (None, read)):
            return None
        found = read if steps == -1 else found
    return found


def _never_zero(difference: Affine, loop: For, ranges: Ranges) -> bool:
    return loop.variable not in difference.variables() and ranges.never_zero(difference)

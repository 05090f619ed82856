"""What the threads of a block touch between barriers: steps of a kernel, and the pairs of accesses that may meet in one element from different threads.

A step is what stands between two places where a barrier may be: a loop over threads, an assignment that the first thread or every thread runs, a condition. All is exact where
subscripts and bounds are quasi-affine (isl decides); what is not may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace
from itertools import product

import islpy as isl

from polyml.codegen.cuda.program import AXES, Kernel
from polyml.codegen.loops import Allocate, Assign, For, If, Node, UpdateArgument
from polyml.codegen.rewrite import expressions, uses, walk_nodes
from polyml.expressions import Expr, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, affine, operands
from polyml.sets.spaces import parameters_text

__all__ = ["Meeting", "Nest", "Step", "Touch", "Touches", "element_of", "has_phases", "loop_constraints", "merged"]


@dataclass(frozen=True, slots=True)
class Nest:
    """A loop as it stands in the kernel. number: tells loops apart."""

    number: int
    loop: For


@dataclass(frozen=True, slots=True)
class Touch:
    """An access. inside: loops between the step and the access. everybody: all threads of the block run it, not only those that loops name. copies: further elements that it
    stands for, as unrolled loops leave them: along which dimension, how many, how far apart. asynchronous: a write that even its own thread sees at the next barrier only.
    atomic, conditions: for cuda/proofs/blocks.py, an update that others may meet, and what holds around."""

    variable: str
    write: bool
    subscripts: tuple[Affine | None, ...]
    inside: tuple[For, ...]
    everybody: bool = False
    copies: tuple[tuple[int, int, int], ...] = ()
    asynchronous: bool = False
    atomic: bool = False
    conditions: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """around: the block's and sequential loops that all threads run together, outermost first."""

    number: int
    around: tuple[Nest, ...]
    touches: tuple[Touch, ...]


@dataclass(slots=True)
class Touches:
    """Says what a node touches, and whether two steps may meet. shared: variables that blocks do not exchange; they are the same memory from one tile of a block to the next."""

    kernel: Kernel
    shared: frozenset[str]
    watched: frozenset[str]
    registers: frozenset[str]
    known: dict[tuple[int, int, int | None, bool], bool] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel) -> Touches:
        function = kernel.function
        allocated = [n.variable for n in walk_nodes(function.body) if isinstance(n, Allocate)]
        shared = frozenset(v.name for v in allocated if v.scope == "shared")
        registers = frozenset(v.name for v in allocated if v.scope == "register")
        return Touches(kernel, shared, shared | function.written, registers)

    def step(self, number: int, node: Node, around: tuple[Nest, ...]) -> Step:
        """A thread loop, or a node without thread loops."""
        written = {u.variable for n in walk_nodes((node,)) for u in uses(n) if u.write}
        everybody = not has_phases(node) and bool(written) and written <= self.registers
        return Step(number, around, tuple(merged(self._collect((node,), (), everybody))))

    def condition(self, number: int, node: If, around: tuple[Nest, ...]) -> Step:
        """The reads of a condition that every thread evaluates."""
        reads = [read for expr in expressions(node) for read in reads_of(expr) if read.tensor in self.watched]
        touches = (Touch(r.tensor, False, tuple(map(_plain, r.subscripts)), (), everybody=True) for r in reads)
        return Step(number, around, tuple(dict.fromkeys(touches)))

    def _collect(self, nodes: Sequence[Node], inside: tuple[For, ...], everybody: bool) -> list[Touch]:
        found: list[Touch] = []
        for node in nodes:
            if isinstance(node, Assign | UpdateArgument) and node.across:
                everybody = False  # each thread has its own value; the first one brings it to memory
            for use in uses(node):
                if use.variable in self.watched:
                    subscripts = tuple(map(_plain, use.subscripts))
                    late = use.write and isinstance(node, Assign) and node.asynchronous
                    found.append(Touch(use.variable, use.write, subscripts, inside, everybody, asynchronous=late))
            match node:
                case For():
                    found += self._collect(node.body, (*inside, replace(node, body=())), everybody)
                case If():
                    found += self._collect((*node.then, *node.otherwise), inside, everybody)
                case Assign() | UpdateArgument():
                    pass
                case _:
                    found += self._collect(getattr(node, "body", ()), inside, everybody)
        return found

    def meet(self, first: Step, second: Step, level: Nest | None, *, far: bool) -> bool:
        """Whether different threads of a block may touch one element in `first` and then in `second`, one of them writing: in one iteration of all common loops, or
        (`level`) from one iteration of that loop to the next (`far`: to any later one)."""
        key = (first.number, second.number, None if level is None else level.number, far)
        if key not in self.known:
            self.known[key] = any(
                not Meeting(self.kernel, first, a, second, b).pairs(level, far=far).is_empty()
                for a in first.touches
                for b in second.touches
                if a.variable == b.variable and (a.write or b.write) and self._exchanged(a.variable, level)
            )
        return self.known[key]

    def _exchanged(self, variable: str, level: Nest | None) -> bool:
        """Tiles of a block have nothing in common but shared memory."""
        return level is None or level.loop.kind != "block" or variable in self.shared


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two accesses of one variable, as constraints on the loops of both (`a0, ..`, `b0, ..`) and on their threads (`ta`, `tb`)."""

    kernel: Kernel
    first: Step
    a: Touch
    second: Step
    b: Touch

    def pairs(self, level: Nest | None, *, far: bool) -> isl.Set:
        """`{ [loops of the first, loops of the second] }` that meet, as `Touches.meet` says."""
        constraints = self.constraints()
        for position, (left, right) in enumerate(zip(self.first.around, self.second.around, strict=False)):
            if left.number != right.number:
                break
            if level is not None and left.number == level.number:
                step = left.loop.step
                later = f"b{position} > a{position}" if far else f"b{position} = a{position} + {step}"
                constraints.append(later)
                break
            constraints.append(f"a{position} = b{position}")
        names = [*self.names("a"), *self.names("b")]
        return isl.Set(f"{self.parameters}{{ [{', '.join(names)}] : {' and '.join(constraints)} }}")

    @property
    def parameters(self) -> str:
        return parameters_text(self.kernel.function.sizes)

    def names(self, side: str) -> list[str]:
        step, touch = (self.first, self.a) if side == "a" else (self.second, self.b)
        copies = (f"c{side}{k}" for k in range(len(touch.copies)))
        return [*(f"{side}{k}" for k in range(len(step.around) + len(touch.inside))), f"t{side}", *copies]

    def constraints(self) -> list[str]:
        """Both accesses happen, in different threads of one block (in any, when the first is asynchronous), and touch one element."""
        made: list[str] = []
        elements: list[list[Affine | None]] = []
        for side, step, touch in (("a", self.first, self.a), ("b", self.second, self.b)):
            bounds, values = loop_constraints((*(nest.loop for nest in step.around), *touch.inside), side)
            made += bounds
            made += self._thread(side, touch, len(step.around))
            made += [f"0 <= c{side}{k} < {count}" for k, (_, count, _) in enumerate(touch.copies)]
            elements.append(element_of(touch, values, side))
        for left, right in zip(*elements, strict=True):
            if left is not None and right is not None and not (_extreme(left) or _extreme(right)):
                made.append(f"{left.isl_text()} = {right.isl_text()}")
        return made if self.a.asynchronous else [*made, "(ta < tb or ta > tb)"]

    def _thread(self, side: str, touch: Touch, depth: int) -> list[str]:
        """The number of the thread in its block."""
        extents = self.kernel.threads
        if touch.everybody:
            return [f"0 <= t{side} < {extents[0] * extents[1] * extents[2]}"]
        number, stride = affine(0), 1
        for axis, extent in zip(AXES, extents, strict=True):
            for position, loop in enumerate(touch.inside):
                if loop.kind == "thread" and loop.axis == axis:
                    number = number + affine(f"{side}{depth + position}") % loop.factor * stride
            stride *= extent
        return [f"t{side} = {number.isl_text()}"]


def element_of(touch: Touch, values: dict[str, Affine], side: str) -> list[Affine | None]:
    """The subscripts, under the names of one side (of its copies: `c<side>0, ..`)."""
    found = [None if s is None else s.substitute(values) for s in touch.subscripts]
    for k, (dimension, _, apart) in enumerate(touch.copies):
        value = found[dimension]
        found[dimension] = None if value is None else value + affine(f"c{side}{k}") * apart
    return found


def merged(touches: Sequence[Touch]) -> list[Touch]:
    """The touches with those in one that differ by constants only, where these are a box of equal steps."""
    groups: dict[Touch, set[tuple[int, ...]]] = {}
    for touch in touches:
        constants = tuple(0 if s is None else s.constant for s in touch.subscripts)
        bare = tuple(None if s is None else s - s.constant for s in touch.subscripts)
        groups.setdefault(replace(touch, subscripts=bare), set()).add(constants)
    made: list[Touch] = []
    for touch, places in groups.items():
        for sides in _boxes(places):
            levels = [_levels(side) for side in sides]
            if all(level is not None for level in levels):
                first = (None if s is None else s + side[0] for s, side in zip(touch.subscripts, sides, strict=True))
                copies = tuple((d, *pair) for d, level in enumerate(levels) for pair in level or ())
                made.append(replace(touch, subscripts=tuple(first), copies=copies))
                continue
            for place in product(*sides):
                moved = (None if s is None else s + c for s, c in zip(touch.subscripts, place, strict=True))
                made.append(replace(touch, subscripts=tuple(moved)))
    return made


def _boxes(places: Collection[tuple[int, ...]]) -> list[tuple[list[int], ...]]:
    """The points as boxes, each the ascending values of its sides: equal rows are one, as where all elements of a tile but the first are under a condition."""
    if not all(places):
        return [()]
    rows: dict[int, set[tuple[int, ...]]] = {}
    for first, *rest in places:
        rows.setdefault(first, set()).add(tuple(rest))
    equal: dict[frozenset[tuple[int, ...]], list[int]] = {}
    for first in sorted(rows):
        equal.setdefault(frozenset(rows[first]), []).append(first)
    return [(firsts, *box) for rest, firsts in equal.items() for box in _boxes(rest)]


def _levels(values: list[int]) -> list[tuple[int, int]] | None:
    """Ascending numbers as the first one plus multiples: `[(2, 64), (4, 1)]` are 0, 1, 2, 3, 64, 65, 66, 67; None when they are no such pattern."""
    if len(values) == 1:
        return []
    step = values[1] - values[0]
    run = next((k for k in range(1, len(values)) if values[k] != values[0] + k * step), len(values))
    if len(values) % run:
        return None
    firsts = values[::run]
    if values != [first + k * step for first in firsts for k in range(run)]:
        return None
    outer = _levels(firsts)
    return None if outer is None else [*outer, (run, step)]


def loop_constraints(loops: Sequence[For], side: str) -> tuple[list[str], dict[str, Affine]]:
    """That the loops, outermost first, run an iteration of variables called `<side>0, <side>1, ..`; and the names of their own variables."""
    made: list[str] = []
    values: dict[str, Affine] = {}
    for position, loop in enumerate(loops):
        name = f"{side}{position}"
        made += _bounds(loop, name, values)
        values = {**values, loop.variable: affine(name)}
    return made, values


def has_phases(node: Node) -> bool:
    """Whether threads come apart in the node."""
    return any(isinstance(inner, For) and inner.kind == "thread" for inner in walk_nodes((node,)))


def _plain(subscript: object) -> Affine | None:
    return subscript if isinstance(subscript, Affine) else None


def _bounds(loop: For, name: str, values: dict[str, Affine]) -> list[str]:
    """lower <= name < upper, in steps; without what isl has no words for."""
    lower, upper = loop.lower.substitute(values), loop.upper.substitute(values)
    made = [f"{name} >= {o.isl_text()}" for o in operands(lower, "max") if not _extreme(o)]
    made += [f"{name} < {o.isl_text()}" for o in operands(upper, "min") if not _extreme(o)]
    firsts = operands(lower, "max")  # it begins at one of them
    if loop.step > 1 and not any(map(_extreme, firsts)):
        steps = sorted({(first % loop.step).isl_text() for first in firsts})
        made.append("(" + " or ".join(f"{name} mod {loop.step} = {step}" for step in steps) + ")")
    return made


def _extreme(value: Affine) -> bool:
    """Whether there is an extremum inside."""
    for atom, _ in value.terms:
        if isinstance(atom, Extremum):
            return True
        if not isinstance(atom, str) and _extreme(atom.numerator):
            return True
    return False

"""The proof that barriers are enough: of any two accesses of different threads to one element, one of them a write, a barrier lies between them in time. Apart from how
barriers are placed (cuda/blocks/barriers.py), for tests and for `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import islpy as isl

from polyml.codegen.cuda.blocks.barriers import crosses_warps, is_together
from polyml.codegen.cuda.program import Kernel
from polyml.codegen.cuda.proofs.touches import Meeting, Nest, Step, Touches, loop_constraints
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, UpdateArgument
from polyml.records import dataclass
from polyml.sets.spaces import parameters_text

__all__ = ["barrier_faults"]


def barrier_faults(kernel: Kernel) -> list[str]:
    """The variables that two threads touch without a barrier between them, each with an example; empty when all is well."""
    if kernel.threads == (1, 1, 1):
        return []
    line = _Timeline(Touches.of(kernel), crosses_warps(kernel))
    line.walk(kernel.function.body, (), (), ())
    before = isl.Map.lex_lt(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, line.depth))
    faults: dict[str, str] = {}
    for first in line.steps:
        for second in line.steps:
            separated: isl.Map | None = None
            for variable, pairs in line.meetings(first, second):
                pairs = pairs.intersect(before)
                if variable in faults or pairs.is_empty():
                    continue
                if separated is None:
                    separated = before.intersect_range(line.barriers_for(first, second)).apply_range(before)
                open_ = pairs.subtract(separated)
                if not open_.is_empty():
                    faults[variable] = f"{variable}: no barrier between {open_.sample()}"
    return list(faults.values())


Branch = tuple[tuple[int, bool], ...]
"""The conditions around a step, and which side of each it is on."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step in time: positions and loops alternate, `[p0, i0, p1, i1, .., p]`."""

    positions: tuple[int, ...]
    step: Step
    branch: Branch

    def time(self, side: str, depth: int) -> str:
        parts: list[str] = []
        for k, position in enumerate(self.positions):
            parts += [str(position), *([f"{side}{k}"] if k < len(self.step.around) else [])]
        return ", ".join([*parts, *("0" for _ in range(depth - len(parts)))])


@dataclass(slots=True)
class _Timeline:
    touches: Touches
    warps: bool
    steps: list[_Timed] = field(default_factory=list)
    barriers: list[_Timed] = field(default_factory=list)
    count: int = 0

    @property
    def depth(self) -> int:
        return max((2 * len(t.positions) - 1 for t in (*self.steps, *self.barriers)), default=1)

    def walk(self, nodes: Sequence[Node], around: tuple[Nest, ...], positions: tuple[int, ...], branch: Branch) -> None:
        """Steps and barriers in the order of the text."""
        for node in nodes:
            self.count += 1
            here = (*positions, self.count)
            match node:
                case Block() if node.barrier:
                    self.barriers.append(_Timed(here, Step(0, around, ()), branch))
                    self.walk(node.body, around, positions, branch)
                case For() if node.kind == "block" or (node.kind != "thread" and is_together(node)):
                    self.walk(node.body, (*around, Nest(self.count, node)), here, branch)
                case Allocate() | Block() if is_together(node):
                    self.walk(node.body, around, positions, branch)
                case If() if is_together(node):
                    self.steps.append(_Timed(here, self.touches.condition(self.count, node, around), branch))
                    number = self.count
                    self.walk(node.then, around, positions, (*branch, (number, True)))
                    self.walk(node.otherwise, around, positions, (*branch, (number, False)))
                case Assign() | UpdateArgument() if node.across and self.warps:
                    self.barriers.append(_Timed(here, Step(0, around, ()), branch))
                    self.count += 1
                    after = (*positions, self.count)
                    self.steps.append(_Timed(after, self.touches.step(self.count, node, around), branch))
                case _:
                    self.steps.append(_Timed(here, self.touches.step(self.count, node, around), branch))

    def barriers_for(self, first: _Timed, second: _Timed) -> isl.Set:
        """The times of barriers that surely run between the steps: those under a condition that is not theirs do not."""
        kernel = self.touches.kernel
        head = parameters_text(kernel.function.sizes)
        total = isl.Set(f"{head}{{ [{', '.join(f'x{k}' for k in range(self.depth))}] : false }}")
        for barrier in self.barriers:
            size = len(barrier.branch)
            if barrier.branch not in (first.branch[:size], second.branch[:size]):
                continue
            loops = tuple(nest.loop for nest in barrier.step.around)
            made, _ = loop_constraints(loops, "a")
            names = ", ".join(f"a{k}" for k in range(len(loops)))
            where = " and ".join(made) or "true"
            total = total.union(
                isl.Map(f"{head}{{ [{names}] -> [{barrier.time('a', self.depth)}] : {where} }}").range()
            )
        return total

    def meetings(self, first: _Timed, second: _Timed) -> Iterator[tuple[str, isl.Map]]:
        """Per variable the pairs of times at which different threads touch one element."""
        kernel, one, other = self.touches.kernel, first.step, second.step
        common = [
            (k, nest)
            for k, (nest, its) in enumerate(zip(one.around, other.around, strict=False))
            if nest.number == its.number
        ]
        limits = []
        apart = [a for a, b in zip(first.branch, second.branch, strict=False) if a[0] == b[0] and a != b]
        if apart:  # the two sides of a condition run in different iterations
            limits.append(" or ".join(f"a{k} != b{k}" for k, _ in common) or "false")
        for a in one.touches:
            for b in other.touches:
                if a.variable != b.variable or not (a.write or b.write):
                    continue
                meeting = Meeting(kernel, one, a, other, b)
                inside = (
                    []
                    if a.variable in self.touches.shared
                    else [nest for nest in common if nest[1].loop.kind == "block"]
                )
                where = [*meeting.constraints(), *(f"({limit})" for limit in limits)]
                where += [f"a{k} = b{k}" for k, _ in inside]
                names = ", ".join((*meeting.names("a"), *meeting.names("b")))
                times = f"[{first.time('a', self.depth)}] -> [{second.time('b', self.depth)}]"
                text = f"[{names}] -> [{times}] : {' and '.join(where)}"
                yield a.variable, isl.Map(f"{meeting.parameters}{{ {text} }}").range().unwrap()

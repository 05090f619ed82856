"""argmax and argmin of numbers of 8 and 16 bits: where the best one was is counted in steps of the loop, in as many bits as the numbers have.

An index of 32 bits beside 32 lanes of bytes is four registers for each of values, and the mask that chooses is widened for each. The number of the step is one: a step takes a maximum, a comparison and a choice for each vector. A block has as many
steps as such numbers count; then lanes' indices are made of their steps, once, and the best of the lanes found.

    for k: best, index = better(x[k], k)    ->    for block: t = first vectors; p = 0
                                                      for s: p = t >= x[..] ? p : s; t = max(t, x[..])
                                                      best, index = better(t, block + p * vectors * width + lane)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from polyml.codegen.loops import Allocate, Assign, For, Node, Place, UpdateArgument, Variable
from polyml.codegen.passes.unrolling.jam import jam
from polyml.codegen.passes.vectors.parts import VectorPlan
from polyml.codegen.passes.vectors.privatize import Partial
from polyml.dtypes import DType, boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.new_names import fresh
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, affine, minimum

__all__ = ["counted_steps", "counts_steps"]

_BITS = 16
"""Of numbers, at most: lanes of more have indices as long as they are."""

_LEAST = 4
"""Steps, at least: fewer are less than what the end takes."""


def counts_steps(loop: For, plan: VectorPlan, partials: tuple[Partial, ...]) -> bool:
    """Whether the loop does nothing but find one best number, of so few bits, and is not known to be short."""
    match loop.body:
        case (UpdateArgument(candidate_index=IndexValue(affine=index)) as step,):
            pass
        case _:
            return False
    if len(partials) != 1 or step.candidate.dtype.kind not in "iu" or step.candidate.dtype.bits > _BITS:
        return False
    steps = (plan.middle - loop.lower) // (plan.vectors * plan.width)
    if plan.has_head or not plan.has_main or (steps.is_constant and steps.constant < _LEAST):
        return False
    return index.is_linear and index.stride(loop.variable) == 1


def counted_steps(loop: For, plan: VectorPlan, partial: Partial, taken: set[str]) -> Node:
    """The main part of the loop, in blocks."""
    (update,) = loop.body
    assert isinstance(update, UpdateArgument)
    block, step, lane = (affine(fresh(f"{loop.variable}_{what}", taken)) for what in ("block", "step", "lane"))
    registers = tuple(
        _Registers(*(fresh(f"{loop.variable}_{what}", taken) for what in ("best", "place", "index")))
        for _ in range(plan.vectors)
    )
    together = plan.vectors * plan.width
    most = 1 << (update.candidate.dtype.bits - (update.candidate.dtype.kind == "i"))
    steps = (minimum([block + most * together, plan.middle]) - block) // together
    made = _Block(loop.variable, update, partial.index, plan.width, registers, block, step, lane)
    body = made.allocated(
        (
            made.vectors(block, made.begin),
            For(
                variable=step.name or "", lower=affine(1), upper=steps, step=1, kind="sequential",
                body=(made.vectors(block + together * step, made.go_on),),
            ),
            made.once(made.end(u) for u in range(plan.vectors)),
            *made.best_of_lanes(),
        )
    )  # fmt: skip
    return For(
        variable=block.name or "", lower=loop.lower, upper=plan.middle, step=most * together, kind="sequential",
        body=body,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Registers:
    """Names of what one vector of each step has, lane by lane: the best number, its step, and at the end its index."""

    best: str
    place: str
    index: str


@dataclass(frozen=True, slots=True)
class _Block:
    """As many steps as numbers of the update's type count. variable: of the loop that is cut; block, step, lane: the loops' variables."""

    variable: str
    update: UpdateArgument
    index: DType
    width: int
    registers: tuple[_Registers, ...]
    block: Affine
    step: Affine
    lane: Affine

    @property
    def dtype(self) -> DType:
        """That of the numbers, and of the steps."""
        return self.update.candidate.dtype

    def once(self, body: Iterable[Node]) -> For:
        """All lanes of one vector."""
        return For(
            variable=self.lane.name or "", lower=affine(0), upper=affine(self.width), step=self.width, kind="vector",
            width=self.width, body=tuple(body),
        )  # fmt: skip

    def vectors(self, start: Affine, body: Callable[[int, Expr], Iterator[Node]]) -> For:
        """Once for all lanes: what the body makes of each vector's number and its candidates."""
        made: list[Node] = []
        for u in range(len(self.registers)):
            (copy,) = jam((self.update,), self.variable, [start + self.lane + u * self.width], taken=set())
            assert isinstance(copy, UpdateArgument)
            made += body(u, copy.candidate)
        return self.once(made)

    def begin(self, u: int, candidate: Expr) -> Iterator[Node]:
        """The first step."""
        yield Assign(target=Place(self.registers[u].best, ()), value=candidate)
        yield Assign(target=Place(self.registers[u].place, ()), value=Const(0, self.dtype))

    def go_on(self, u: int, candidate: Expr) -> Iterator[Node]:
        """Any other step."""
        better, no_worse = ("max", "ge") if self.update.kind == "argmax" else ("min", "le")
        names = self.registers[u]
        best, place = (Read(name, (), self.dtype) for name in (names.best, names.place))
        number = Apply("cast", (IndexValue(self.step, i64),), self.dtype)
        chosen = Apply("select", (Apply(no_worse, (best, candidate), boolean), place, number), self.dtype)
        yield Assign(target=Place(names.place, ()), value=chosen)
        yield Assign(target=Place(names.best, ()), value=Apply(better, (best, candidate), self.dtype))

    def end(self, u: int) -> Node:
        """Indices of the lanes' best numbers."""
        index, names = self.index, self.registers[u]
        assert isinstance(self.update.candidate_index, IndexValue)
        place_of = self.update.candidate_index.affine
        first = place_of.substitute({self.variable: self.block + self.lane + u * self.width})
        together = Const(len(self.registers) * self.width, index)
        steps = Apply("mul", (Apply("cast", (Read(names.place, (), self.dtype),), index), together), index)
        value = Apply("add", (steps, Apply("cast", (IndexValue(first, i64),), index)), index)
        return Assign(target=Place(names.index, ()), value=value)

    def best_of_lanes(self) -> Iterator[Node]:
        """The best number so far against those of all lanes."""
        for names in self.registers:
            best, index = Read(names.best, (), self.dtype), Read(names.index, (), self.index)
            yield replace(self.update, candidate=best, candidate_index=index, across=True)

    def allocated(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The body with the registers around it."""
        for names in self.registers:
            for name, dtype in ((names.best, self.dtype), (names.place, self.dtype), (names.index, self.index)):
                variable = Variable(name=name, dtype=dtype, shape=(), scope="register", lanes=self.width)
                body = (Allocate(variable=variable, body=body),)
        return body

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
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.new_names import fresh
from polyml.records import replace
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
    assert isinstance(update.candidate_index, IndexValue)
    dtype, index, width = update.candidate.dtype, partial.index, plan.width
    place_of = update.candidate_index.affine
    together = plan.vectors * width
    most = 1 << (dtype.bits - (dtype.kind == "i"))
    block, step, lane = (affine(fresh(f"{loop.variable}_{what}", taken)) for what in ("block", "step", "lane"))
    names = [
        [fresh(f"{loop.variable}_{what}", taken) for what in ("best", "place", "index")] for _ in range(plan.vectors)
    ]
    better, no_worse = ("max", "ge") if update.kind == "argmax" else ("min", "le")

    def vectors(start: Affine, body: Callable[[int, Expr], Iterator[Node]]) -> For:
        """Once for all lanes: what the body makes of each vector's number and its candidates."""
        made: list[Node] = []
        for u in range(plan.vectors):
            (copy,) = jam((update,), loop.variable, [start + lane + u * width], taken=set())
            assert isinstance(copy, UpdateArgument)
            made += body(u, copy.candidate)
        return once(made)

    def once(body: Iterable[Node]) -> For:
        first, last = affine(0), affine(width)
        return For(
            variable=lane.name or "", lower=first, upper=last, step=width, kind="vector", width=width, body=tuple(body)
        )

    def begin(u: int, candidate: Expr) -> Iterator[Node]:
        yield Assign(target=Place(names[u][0], ()), value=candidate)
        yield Assign(target=Place(names[u][1], ()), value=Const(0, dtype))

    def go_on(u: int, candidate: Expr) -> Iterator[Node]:
        best, place = (Read(name, (), dtype) for name in names[u][:2])
        number = Apply("cast", (IndexValue(step, i64),), dtype)
        chosen = Apply("select", (Apply(no_worse, (best, candidate), boolean), place, number), dtype)
        yield Assign(target=Place(names[u][1], ()), value=chosen)
        yield Assign(target=Place(names[u][0], ()), value=Apply(better, (best, candidate), dtype))

    def end(u: int) -> Node:
        first = place_of.substitute({loop.variable: block + lane + u * width})
        steps = Apply("mul", (Apply("cast", (Read(names[u][1], (), dtype),), index), Const(together, index)), index)
        value = Apply("add", (steps, Apply("cast", (IndexValue(first, i64),), index)), index)
        return Assign(target=Place(names[u][2], ()), value=value)

    steps = (minimum([block + most * together, plan.middle]) - block) // together
    body: tuple[Node, ...] = (
        vectors(block, begin),
        For(
            variable=step.name or "", lower=affine(1), upper=steps, step=1, kind="sequential",
            body=(vectors(block + together * step, go_on),),
        ),
        once(end(u) for u in range(plan.vectors)),
        *(
            replace(update, candidate=Read(best, (), dtype), candidate_index=Read(place, (), index), across=True)
            for best, _, place in names
        ),
    )  # fmt: skip
    for name, type_ in (
        (name, type_) for trio in names for name, type_ in zip(trio, (dtype, dtype, index), strict=True)
    ):
        body = (
            Allocate(variable=Variable(name=name, dtype=type_, shape=(), scope="register", lanes=width), body=body),
        )
    return For(
        variable=block.name or "",
        lower=loop.lower,
        upper=plan.middle,
        step=most * together,
        kind="sequential",
        body=body,
    )

"""The sum that a step of a sequential loop begins with, in the sweep that ends the step before.

A step that sums over a vector and then updates it goes through it twice. The update of the step before can wait until the sum: one sweep then updates an element, and has the sum's next term in a register.

Rewrite, for steps k from f to l, T the update and U the sum:
    for k: (for i: U[k, i]); V[k]; for i: T[k, i]
    ->  (for i: U[f, i]); V[f]; for k > f: (for i: T[k - 1, i]; U[k, i]); V[k]; for i: T[l, i]

What the sum reads of elements that T does not write (the last ones of a growing vector) is a statement of its own, behind the sweep; so are the first step and the last update. Whatever follows T in its step waits
with it.

When: T runs along a vector that it writes, U reads that vector one step later, nothing that U needs of its own step depends on T, and no other sweep of T's step shares elements with it.

Source: shifted fusion is loop alignment, Allen, Callahan and Kennedy, "Automatic decomposition of scientific programs for parallel execution" (POPL 1987).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import islpy as isl

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.ilp.driver import Around, Outline
from polyml.schedule.layouts.rows_in_turns import Steps, distances
from polyml.schedule.pieces import Pieces
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import maps_of, parameters_text

__all__ = ["SumsAhead", "sum_ahead"]

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class SumsAhead:
    """The scop in pieces, its dependences, and what runs one after the other."""

    scop: Scop
    dependences: Dependences
    outline: Outline


def sum_ahead(scop: Scop, dependences: Dependences, steps: Steps) -> SumsAhead | None:
    """The scop, copies around a loop, with a sum ahead; None where there is none."""
    inside = {name: s for name, s in scop.statements.items() if s.loop_depth}
    order = _Order(inside, dependences)
    for name, s in inside.items():
        if s.kind != "update" or len(s.indices) != 2:
            continue
        for update, pairs in order.written_before(name):
            late = order.behind(update)
            if name not in late and order.is_alone(update):
                return _pieces(scop, dependences, steps, late, name, pairs)
    return None


class _Order:
    """What statements are to each other in a step, and from one to the next."""

    def __init__(self, statements: Mapping[str, Statement], dependences: Dependences) -> None:
        self._statements = statements
        self._flow = _between(dependences.flow, statements)
        every = _between(dependences.validity, statements)
        self._within = {pair: m.equate(_IN, 0, _OUT, 0) for pair, m in every.items() if _is_in_step(m)}
        self._edges = list(self._within)

    def written_before(self, name: str) -> Iterator[tuple[str, isl.Map]]:
        """The statements that write a vector along which the sum runs in the next step, and what goes to what."""
        index = affine(self._statements[name].indices[1])
        read = {r.tensor for r in reads_of(self._statements[name].value) if r.subscripts and r.subscripts[-1] == index}
        for (source, sink), m in self._flow.items():
            s = self._statements[source]
            plain = s.kind == "assign" and len(s.indices) == 2 and s.target.array in read
            if sink == name and plain and s.target.subscripts[-1] == affine(s.indices[1]) and _is_next(m):
                yield source, m

    def behind(self, name: str) -> set[str]:
        """The statement and what follows it in its step."""
        return _closure({name}, self._edges)

    def is_alone(self, name: str) -> bool:
        """Whether the statement needs nothing of its own in a step, and no other sweep goes along with it, element by element."""
        own = [(pair, m) for pair, m in self._within.items() if name in pair]
        wide = [(pair, m) for pair, m in own if all(len(self._statements[end].indices) > 1 for end in pair)]
        return (name, name) not in self._within and not any(distances(m, 1) == {0} for _, m in wide)

    def groups(self, sweep: set[str]) -> tuple[tuple[str, ...], ...] | None:
        """What a step needs before the sweep, the sweep, and the rest; None where something comes between parts of the sweep."""
        before = _closure(sweep, [(sink, source) for source, sink in self._edges]) - sweep
        if any(source in sweep and sink in before for source, sink in self._edges):
            return None
        rest = self._statements.keys() - before - sweep
        parts = [tuple(n for n in self._statements if n in part) for part in (before, sweep, rest)]
        return tuple(names for names in parts if names)


def _between(relation: isl.UnionMap, statements: Mapping[str, Statement]) -> dict[tuple[str, str], isl.Map]:
    """The relation's maps between these statements, by source and sink."""
    found: dict[tuple[str, str], isl.Map] = {}
    for m in maps_of(relation):
        pair = m.get_tuple_name(_IN), m.get_tuple_name(_OUT)
        if pair[0] in statements and pair[1] in statements:
            found[pair] = m
    return found


def _closure(names: set[str], edges: Sequence[tuple[str, str]]) -> set[str]:
    found, new = set(names), set(names)
    while new:
        new = {sink for source, sink in edges if source in new} - found
        found |= new
    return found


def _is_in_step(m: isl.Map) -> bool:
    """Whether some of it stays in a step."""
    return not m.equate(_IN, 0, _OUT, 0).is_empty()


def _is_next(m: isl.Map) -> bool:
    """Whether all of it goes from an element to the same one of the next step."""
    return distances(m, 0) == {1} and distances(m, 1) == {0}


def _pieces(
    scop: Scop, dependences: Dependences, steps: Steps, late: set[str], sum_: str, pairs: isl.Map
) -> SumsAhead | None:
    """The statements in pieces: what runs before the loop, its first step, the others, what is late after the last, what runs after the loop.

    Args:
        late: statements that wait for the next step. pairs: the terms of the sum that read what one of them writes, `{ T[k, i] -> U[k + 1, i] }`.
    """
    made = Pieces(scop)
    parts: dict[str, list[str]] = {part: [] for part in ("ahead", "first", "main", "last", "behind")}

    def add(part: str, s: Statement, instances: isl.Set, *, ending: str = "", late: str | None = None) -> None:
        parts[part] += made.add(s, instances, ending=ending, late=late)

    for name, s in scop.statements.items():
        if not s.loop_depth:
            add("behind" if parts["main"] else "ahead", s, s.domain)
        elif name in late:
            final = _at(scop, s, steps.index, steps.last)
            add("last", s, final, ending="last")
            add("main", s, s.domain.subtract(final), late=steps.index)
        else:
            start = _at(scop, s, steps.index, steps.first)
            add("first", s, start, ending="first")
            rest = s.domain.subtract(start)
            if name == sum_:
                along = pairs.range().intersect(rest)
                add("main", s, rest.subtract(along), ending="rest")
                rest = along
            add("main", s, rest)
    moved = made.dependences(dependences)
    groups = _Order({name: made.statements[name] for name in parts["main"]}, moved).groups({*late, sum_})
    if groups is None:
        return None
    loop = Around(dict.fromkeys(parts["main"], steps.index), parallel=False, inside=groups, carries=True)
    names = {part: tuple(pieces) for part, pieces in parts.items()}
    outline = (names["ahead"], names["first"], loop, names["last"], names["behind"])
    return SumsAhead(
        made.scop([n for pieces in parts.values() for n in pieces]), moved, tuple(part for part in outline if part)
    )


def _at(scop: Scop, s: Statement, index: str, step: Affine) -> isl.Set:
    head = f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}]"
    return s.domain.intersect(isl.Set(f"{head} : {index} = {step.isl_text()} }}"))

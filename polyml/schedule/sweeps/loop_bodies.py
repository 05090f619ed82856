"""One iteration of the sequential loops around all statements, as a scop of its own, and back.

What runs one after the other in an iteration, and in which blocks, is the same question as without loops around: their variables are sizes there, of which nothing is known but that they are in range. What is made of the
iteration gets its loops back; dependences from one iteration to the next are the loops' own, since these stay outermost.

Rewrite: S[t, i] -> [t] -> { S[i] }, and the other way round
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.ilp.driver import Around, Outline
from polyml.schedule.written import with_statements
from polyml.scop.scop import Scop, Statement

__all__ = ["Body", "body_of"]

_PARAM, _SET, _IN, _OUT = isl.dim_type.param, isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Body:
    """scop: of one iteration. loops: the variables, the outermost first. whole: the scop with the loops."""

    scop: Scop
    loops: tuple[str, ...]
    whole: Scop

    def in_loops(self, scop: Scop, outline: Outline) -> tuple[Scop, Outline]:
        """What is made of the iteration, and what runs one after the other there, with the loops around."""
        if not self.loops:
            return scop, outline
        statements = {name: self._inside(s) for name, s in scop.statements.items()}
        whole = replace(self.whole, arrays=scop.arrays)
        for loop in reversed(self.loops):
            outline = (Around(dict.fromkeys(statements, loop), parallel=False, inside=outline, carries=True),)
        return with_statements(whole, statements, scop.arrays, loops=self.loops), outline

    def _inside(self, s: Statement) -> Statement:
        depth = len(self.loops)
        first = [s.domain.find_dim_by_name(_PARAM, loop) for loop in self.loops]
        domain = s.domain
        for position, loop in enumerate(self.loops):
            if first[position] < 0:  # nothing asks for the variable
                domain = domain.insert_dims(_SET, position, 1)
            else:
                at = domain.find_dim_by_name(_PARAM, loop)
                domain = domain.move_dims(_SET, position, _PARAM, at, 1)
        return _named(replace(s, indices=(*self.loops, *s.indices), loop_depth=depth), domain)


def body_of(scop: Scop) -> Body | None:
    """One iteration of the loops around all statements, which run one after the other in it; None where some are in other loops."""
    first = next(iter(scop.statements.values()))
    depth = first.loop_depth
    loops = first.indices[:depth]
    if any(s.loop_depth != depth or s.indices[:depth] != loops for s in scop.statements.values()):
        return None
    if not depth:
        return Body(scop, (), scop)
    if not _one_after_the_other(scop, depth):
        return None
    statements = {name: _alone(s, depth) for name, s in scop.statements.items()}
    inner = replace(scop, sizes=(*scop.sizes, *loops), statements=statements)
    return Body(with_statements(inner, statements, scop.arrays), loops, scop)


def _alone(s: Statement, depth: int) -> Statement:
    domain = s.domain.move_dims(_PARAM, s.domain.dim(_PARAM), _SET, 0, depth)
    for loop in s.indices[:depth]:
        domain = domain.set_dim_name(_PARAM, domain.dim(_PARAM) - depth + s.indices.index(loop), loop)
    return _named(replace(s, indices=s.indices[depth:], loop_depth=0), domain)


def _named(s: Statement, domain: isl.Set) -> Statement:
    domain = domain.set_tuple_name(s.name)
    for position, name in enumerate(s.indices):
        domain = domain.set_dim_name(_SET, position, name)
    return replace(s, domain=domain)


def _one_after_the_other(scop: Scop, depth: int) -> bool:
    """Whether in each iteration all instances of a statement were written before those of the next: times are a position and a loop's value by turns, then a position."""
    ahead: int | None = None
    around: tuple[int, ...] | None = None
    for s in scop.statements.values():
        time = scop.initial.intersect_domain(s.domain.to_union_set())
        if time.is_empty():
            return False
        own = time.as_map()
        if own.dim(_OUT) <= 2 * depth:
            return False
        places = [own.plain_get_val_if_fixed(_OUT, 2 * d) for d in range(depth + 1)]
        if not all(place.is_int() for place in places):
            return False
        if not all(own.is_subset(own.equate(_IN, d, _OUT, 2 * d + 1)) for d in range(depth)):
            return False
        *outer, position = (place.to_python() for place in places)
        if (around is not None and tuple(outer) != around) or (ahead is not None and position <= ahead):
            return False
        around, ahead = tuple(outer), position
    return True

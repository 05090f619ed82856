"""Dataflow beside statements that run in one iteration of a loop, against enumeration."""

from __future__ import annotations

import random
from dataclasses import dataclass

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.sets.unnumbered import numbered, unnumbered

Instance = tuple[str, int, int]


@dataclass(frozen=True)
class Access:
    """`name[t, i]`, all of whose t and i access `x[a*t + b*i + c]`."""

    name: str
    writes: bool
    iterations: range
    elements: range
    place: tuple[int, int, int]

    def instances(self) -> list[tuple[Instance, int]]:
        a, b, c = self.place
        return [((self.name, t, i), a * t + b * i + c) for t in self.iterations for i in self.elements]

    def relation(self) -> str:
        a, b, c = self.place
        t, i = self.iterations, self.elements
        return f"{self.name}[t, i] -> x[{a}*t + {b}*i + {c}] : {t[0]} <= t <= {t[-1]} and {i[0]} <= i <= {i[-1]}"


def accesses(seed: int) -> list[Access]:
    rng = random.Random(seed)
    made = []
    for k in range(rng.randint(2, 5)):
        one = rng.randrange(3)
        iterations = rng.choice([range(3), range(3), range(one, one + 1)])
        elements = rng.choice([range(3), range(2), range(one, one + 1)])
        place = rng.choice([(0, 1, 0), (0, 0, one), (0, -1, 2), (1, 0, 0)])
        made.append(Access(f"S{k}", rng.random() < 0.6, iterations, elements, place))
    return made


def pairs(relation: isl.UnionMap) -> set[tuple[Instance, ...]]:
    found: set[tuple[Instance, ...]] = set()

    def visit(point: isl.Point) -> None:
        wrapped = isl.Set.from_point(point).unwrap()
        ends = []
        for end in (wrapped.domain(), wrapped.range()):
            at = end.sample_point()
            t, i = (at.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(2))
            ends.append((end.get_tuple_name(), t, i))
        found.add(tuple(ends))

    if not relation.is_empty():
        relation.wrap().foreach_point(visit)
    return found


@pytest.mark.parametrize("seed", [36, 38, 60, 130, 271, 416, 7, 8])
def test_the_last_write_and_the_reads_since(seed: int) -> None:
    made = accesses(seed)
    events = sorted(
        (t, k, i, access.writes, place, (name, t, i))
        for k, access in enumerate(made)
        for (name, t, i), place in access.instances()
    )
    last: dict[int, Instance] = {}
    reads: dict[int, set[Instance]] = {}
    flow: set[tuple[Instance, ...]] = set()
    anti: set[tuple[Instance, ...]] = set()
    for *_, writes, place, instance in events:
        if writes:
            anti |= {(read, instance) for read in reads.pop(place, ())}
            last[place] = instance
        else:
            reads.setdefault(place, set()).add(instance)
            flow |= {(last[place], instance)} if place in last else set()
    written, read = (
        isl.UnionMap("{ " + "; ".join(a.relation() for a in made if a.writes == writes) + " }")
        for writes in (True, False)
    )
    times = isl.UnionMap("{ }")
    for time in unnumbered([isl.Map(f"{{ S{k}[t, i] -> [t, {k}, i] }}") for k in range(len(made))]):
        times = times.union(time.to_union_map())
    ahead = isl.UnionAccessInfo.from_sink(read).set_must_source(written).set_schedule_map(times).compute_flow()
    assert pairs(numbered(ahead.get_must_dependence())) == flow
    behind = isl.UnionAccessInfo.from_sink(written).set_may_source(read).set_kill(written)
    assert pairs(numbered(behind.set_schedule_map(times).compute_flow().get_may_dependence())) == anti


def test_reads_of_one_iteration_are_known_to_the_writes_of_another() -> None:
    """x[0] is read in the first iteration, and the second one begins with writing it."""
    program = polyml.einsum("""
def f(x: f64["N"], z: f64["N"]):
    for t in range(N):
        if i < t:
            x[i] = z[t] - z[i]
        if i <= t:
            x[i] += x[(i + 1) % N] - x[i]
        if i > t:
            x[i] += x[min(i + 1, N - 1)] - x[(i + 1) % N]
    return x
""")
    assert program(np.array([1.0, 2.0]), np.array([3.0, 11.0])).tolist() == [2, 8]

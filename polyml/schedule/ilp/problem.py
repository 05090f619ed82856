"""What a scheduling problem consists of, and its loops one at a time: legal, parallel, or the best by the cost functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace

import islpy as isl
import numpy as np

from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.costs import objective
from polyml.schedule.ilp.hyperplanes import Hyperplane, Row, distances, unit
from polyml.schedule.ilp.independence import rank
from polyml.schedule.ilp.model import COEFFICIENT_BOUND, SHIFT_BOUND, Model, Shape
from polyml.schedule.ilp.solve import Solver
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of

__all__ = ["Basis", "Problem", "extended", "within"]

Basis = Mapping[str, tuple[tuple[int, ...], ...]]
"""Per statement the index parts of the loops around it."""


_MOST_SOLVED = 256

_SOLVED: dict[Hashable, _Solved] = {}
"""By all that integer programs know of a group; compiling is done under one lock."""


@dataclass(frozen=True, slots=True)
class _Solved:
    """The loops of a group, what its statements were called, and the linear programs that it took."""

    names: tuple[str, ...]
    loops: tuple[Hyperplane, ...]
    nodes: int


@dataclass(slots=True, eq=False)
class Problem:
    """A scop, the cost functions that decide, and the solver. bound: of coefficients, in the first model that is tried."""

    scop: Scop
    costs: tuple[str, ...]
    solver: Solver
    bound: int = COEFFICIENT_BOUND
    _shapes: dict[str, Shape] = field(default_factory=dict)

    # -- statements -------------------------------------------------------------------------------------------------------------

    def dimension(self, name: str) -> int:
        return len(self.scop.statements[name].indices)

    def is_complete(self, name: str, basis: Basis) -> bool:
        """Whether the loops around the statement run through each of its instances separately."""
        return len(basis[name]) >= self.dimension(name)

    def shape(self, name: str) -> Shape:
        if name not in self._shapes:
            self._shapes[name] = _shape(self.scop.statements[name], self.scop)
        return self._shapes[name]

    @property
    def prefers_parallelism(self) -> bool:
        """Whether that cost function comes before `coefficients` in the list, or without it."""
        return next((cost for cost in self.costs if cost in ("parallelism", "coefficients")), "") == "parallelism"

    # -- loops that carry nothing -----------------------------------------------------------------------------------------------

    def zero_loops(self, names: tuple[str, ...], cones: Sequence[Cone], basis: Basis) -> tuple[Hyperplane, ...]:
        """The loops of a strongly connected group with zero distance on its dependences, parallel ones first, then those that carry reductions.

        Only loops along an index, unless parallelism matters more than simple loops.
        """
        if "parallelism" not in self.costs:
            return ()
        if len(names) == 1:
            found = self._unit_loops(names[0], cones, basis)
        else:
            found = self._once("zero", names, cones, basis, lambda: self._zero_of_group(names, cones, basis))
        if not found and self.prefers_parallelism:
            return self.skewed_parallel_loops(names, cones, basis)
        return found

    def _unit_loops(self, name: str, cones: Sequence[Cone], basis: Basis) -> tuple[Hyperplane, ...]:
        """Of one statement: its indices along which no dependence moves. Nothing to solve: no other loop has smaller coefficients."""
        dimension, sizes = self.dimension(name), len(self.scop.sizes)
        strict = np.zeros(dimension, bool)
        relaxed = np.zeros(dimension, bool)
        for cone in cones:
            moves = cone.hull[:, 1 + sizes :].any(0)
            if cone.kind == "reduction":
                relaxed |= moves
            else:
                strict |= moves
        rows = list(basis[name])
        found: list[Hyperplane] = []
        for position in sorted(np.nonzero(~strict)[0], key=lambda k: (bool(relaxed[k]), int(k))):
            row = unit(dimension, int(position), sizes)
            if rank([*rows, row.indices], dimension) > rank(rows, dimension):
                rows.append(row.indices)
                found.append(Hyperplane({name: row}, parallel=not relaxed[position], free=True))
        return tuple(found)

    def _zero_of_group(self, names: tuple[str, ...], cones: Sequence[Cone], basis: Basis) -> tuple[Hyperplane, ...]:
        parallel = self._zero_by_solver(names, cones, basis, relaxed=False)
        inner = extended(basis, parallel)
        return (*parallel, *self._zero_by_solver(names, cones, inner, relaxed=True))

    def _zero_by_solver(
        self, names: tuple[str, ...], cones: Sequence[Cone], basis: Basis, *, relaxed: bool
    ) -> tuple[Hyperplane, ...]:
        found: list[Hyperplane] = []
        zero = [cone for cone in cones if not (relaxed and cone.kind == "reduction")]
        while not all(self.is_complete(name, basis) for name in names):
            model = self._model(names, cones, basis, bound=1)
            loop = self._solve(model, cones, zero=zero) if model.may_have_zero(zero) else None
            if loop is None or any(row.index is None for row in loop.rows.values()):
                break
            found.append(loop)
            basis = extended(basis, [loop])
        return tuple(found)

    def skewed_parallel_loops(
        self, names: tuple[str, ...], cones: Sequence[Cone], basis: Basis
    ) -> tuple[Hyperplane, ...]:
        """Parallel loops along any direction, as many as there are."""
        found: list[Hyperplane] = []
        while not all(self.is_complete(name, basis) for name in names):
            loop = self._attempts(names, cones, basis, zero=cones)
            if loop is None:
                break
            found.append(loop)
            basis = extended(basis, [loop])
        return tuple(found)

    # -- loops that carry something ---------------------------------------------------------------------------------------------

    def band(
        self,
        names: tuple[str, ...],
        cones: Sequence[Cone],
        basis: Basis,
        backwards: tuple[str, ...] = (),
        together: Sequence[Cone] = (),
    ) -> tuple[Hyperplane, ...]:
        """Legal loops of a group, all permutable: one when what it satisfies is to free the loops inside ("satisfaction"), else as many as there are.

        Args:
            backwards: statements that may run against the others where nothing else is legal.
            together: of the cones, those that no loop may carry.
        """
        asked = "band", tuple(names.index(name) for name in backwards), tuple(cones.index(cone) for cone in together)
        return self._once(asked, names, cones, basis, lambda: self._band(names, cones, basis, backwards, together))

    def _band(
        self,
        names: tuple[str, ...],
        cones: Sequence[Cone],
        basis: Basis,
        backwards: tuple[str, ...],
        together: Sequence[Cone],
    ) -> tuple[Hyperplane, ...]:
        found: list[Hyperplane] = []
        while not all(self.is_complete(name, basis) for name in names):
            loop = self._attempts(names, cones, basis, thorough=not found, backwards=backwards, together=together)
            if loop is None:
                break
            found.append(loop)
            basis = extended(basis, [loop])
            if "satisfaction" in self.costs:
                break
        return tuple(found)

    def _once(
        self,
        asked: object,
        names: tuple[str, ...],
        cones: Sequence[Cone],
        basis: Basis,
        find: Callable[[], tuple[Hyperplane, ...]],
    ) -> tuple[Hyperplane, ...]:
        """The loops that answer a question about a group. Ways to schedule a region, and its versions for several sizes, ask the same of groups that are alike in all that the integer programs
        know: these are solved once."""
        places = {name: place for place, name in enumerate(names)}
        shapes = tuple((shape.dimension, shape.last, shape.lanes) for shape in map(self.shape, names))
        about = tuple((cone.kind, places[cone.source], places[cone.sink], cone.hull.tobytes()) for cone in cones)
        # Whether a distance is zero the hulls say, and reductions ask for nothing else.
        strict = [cone for cone in cones if cone.kind != "reduction"] if asked != "zero" else []
        pieces = tuple(tuple((f.generators.tobytes(), f.lines.tobytes()) for f in cone.faces) for cone in strict)
        around = tuple(tuple(basis[name]) for name in names)
        key = asked, self.costs, self.bound, self.solver.patience, len(self.scop.sizes), shapes, around, about, pieces
        if key not in _SOLVED:
            granted, loops = self.solver.nodes, find()
            if len(_SOLVED) >= _MOST_SOLVED:
                del _SOLVED[next(iter(_SOLVED))]
            _SOLVED[key] = _Solved(names, loops, granted - self.solver.nodes)
            return loops
        known = _SOLVED[key]
        self.solver.spend(known.nodes)
        if known.names == names:
            return known.loops
        now = dict(zip(known.names, names, strict=True))
        return tuple(replace(loop, rows={now[name]: row for name, row in loop.rows.items()}) for loop in known.loops)

    def _attempts(
        self,
        names: tuple[str, ...],
        cones: Sequence[Cone],
        basis: Basis,
        *,
        zero: Sequence[Cone] | None = None,
        thorough: bool = True,
        backwards: tuple[str, ...] = (),
        together: Sequence[Cone] = (),
    ) -> Hyperplane | None:
        """The best loop of the smallest model that has one: small coefficients; if it must be, large ones, or coefficients of both signs, and at last
        with some statements running backwards."""
        small = self._model(names, cones, basis)
        if zero is not None and not small.may_have_zero(zero):
            return None
        loop = self._solve(small, cones, zero=zero, together=together)
        if loop is not None or not thorough or together:
            return loop
        loop = self._solve(self._model(names, cones, basis, bound=SHIFT_BOUND), cones, zero=zero)
        most = max(self.dimension(name) - len(basis[name]) for name in names)
        for turned, vector in ((turned, vector) for turned in dict.fromkeys(((), backwards)) for vector in range(most)):
            if loop is not None:
                break
            model = self._model(names, cones, basis, signed=True)
            loop = self._solve(model, cones, zero=zero, vector=vector, backwards=turned)
        return loop

    def _model(
        self,
        names: tuple[str, ...],
        cones: Sequence[Cone],
        basis: Basis,
        *,
        bound: int | None = None,
        signed: bool = False,
    ) -> Model:
        return Model(
            names=names,
            shapes={name: self.shape(name) for name in names},
            strict=[cone for cone in cones if cone.kind != "reduction"],
            basis=basis,
            sizes=len(self.scop.sizes),
            signed=signed,
            bound=bound or self.bound,
        )

    def _solve(
        self,
        model: Model,
        cones: Sequence[Cone],
        *,
        zero: Sequence[Cone] | None = None,
        vector: int | None = None,
        backwards: tuple[str, ...] = (),
        together: Sequence[Cone] = (),
    ) -> Hyperplane | None:
        """The best legal loop of the model; with zero distance on the cones `zero`, and on those `together`."""
        model.require_zero(together)
        if zero is not None:
            model.require_zero(zero)
        model.require_legal([cone for cone in model.strict if zero is None or cone not in zero])
        model.require_independent(vector, backwards)
        costs = [name for name in self.costs if zero is None or name not in ("satisfaction", "reuse")]
        solution = self.solver.solve(model.program(objective(model, costs)))
        if solution is None or model.is_folded(solution):
            return None
        return self.classified(model.rows_of(solution), cones)

    def classified(self, rows: Mapping[str, Row], cones: Sequence[Cone]) -> Hyperplane:
        """The loop of these rows, with what it carries of the cones."""
        moving = [cone for cone in cones if distances(cone, rows).any()]
        return Hyperplane(rows, parallel=not moving, free=all(cone.kind == "reduction" for cone in moving))


def extended(basis: Basis, loops: Sequence[Hyperplane]) -> Basis:
    """The basis with more loops inside; a row that adds no direction to its statement is left out."""
    found = dict(basis)
    for loop in loops:
        for name, row in loop.rows.items():
            rows = (*found[name], row.indices)
            if rank(rows, len(row.indices)) == len(rows):
                found[name] = rows
    return found


def within(cones: Sequence[Cone], names: Sequence[str]) -> list[Cone]:
    """The cones with both ends among the statements."""
    inside = frozenset(names)
    return [cone for cone in cones if cone.source in inside and cone.sink in inside]


def _shape(statement: Statement, scop: Scop) -> Shape:
    last = tuple(_last(statement.domain, k, scop.sizes) for k in range(len(statement.indices)))
    return Shape(dimension=len(statement.indices), last=last, lanes=_lanes(statement))


def _lanes(statement: Statement) -> frozenset[int]:
    """The indices along which the fewest accesses jump; only those along which at least one moves, and those that do move by one element."""
    accesses = {read.subscripts for read in reads_of(statement.value)} | {statement.target.subscripts}
    jumps: dict[int, int] = {}
    for k, index in enumerate(statement.indices):
        strides = [[s.stride(index) if isinstance(s, Affine) else None for s in subscripts] for subscripts in accesses]
        moving = [each for each in strides if any(stride != 0 for stride in each)]
        contiguous = [each for each in moving if not any(each[:-1]) and each[-1] in (1, -1)]
        if contiguous:
            jumps[k] = len(moving) - len(contiguous)
    return frozenset(k for k, count in jumps.items() if count == min(jumps.values()))


def _last(domain: isl.Set, position: int, sizes: tuple[str, ...]) -> tuple[int, tuple[int, ...]] | None:
    """The largest value of an index where it is one affine function of the sizes."""
    pieces = pieces_of(domain.dim_max(position))
    if len(pieces) != 1:
        return None
    value = affine_of(pieces[0][1], ())
    strides = [value.stride(size) for size in sizes]
    if None in strides:
        return None
    return value.constant, tuple(s or 0 for s in strides)

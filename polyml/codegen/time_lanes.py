"""The code of lanes over time (schedule/layouts/time_lanes.py): levels of an element lie side by side, so that lanes, which are rows apart, are neighbours.

A block's lanes l = 0 .. L - 1 are at rows r - lag l of the array. The cell of row r and column j has L + 1 numbers, of which number p is the element at row r - lag (p - 1) after the block's step p - 1 (0: before all of them). So what lane l writes at row r is number l + 1 of
that row's cell. What it reads of its own step, di <= 0 rows away, is number l + 1 of the cell -di rows before; what it reads of the step before is number l of the cell lag - di rows before: vectors both, one beginning at a number of the cell and one at the number before.

A strip has `window` rows of cells, which L1 holds, and elements come and go with rows:
    rows r of a strip:
        cells[r, j, 0] = A[r + lag, j]                       elements before the block's first step
        cells[r, j, p] = A[r - lag (p - 1), j]               of columns beside the strip, and of those that never change: all levels that the array has by then
        vector for (l ..) for (j ..) cells[r, j, l + 1] = f(cells[r - 1, j, l + 1], cells[r - lag - 1, j, l], ..)
        A[r - lag (L - 1), j] = cells[r, j, L]               elements after its last step
        A[r - lag l, j] = cells[r, j, l + 1]                 of the last slant * lag columns, whose further levels are the next strip's
That an element is read at one level and written at a next one before and behind the edge of strips is what the order is proved for on the array itself: there each element has one level when a strip begins.

Lanes whose rows are beside those that change, or whose steps are behind the last one, hand on the level before.
"""

from __future__ import annotations

from polyml.codegen.loops import Allocate, Assign, For, If, LoopKind, Node, Place, Prefetch, Variable
from polyml.codegen.shared_columns import Columns, shared_columns, substitute_registers
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, map_reads, substitute
from polyml.linear import recurrence_of
from polyml.new_names import fresh
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.schedule.levels import TimeLanes
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["time_lanes_nest"]


ROWS_AHEAD = 4
"""How far ahead a strip asks for rows. A program in C took 750 to 790 ms so, and 845 without (seidel-2d at LARGE, Zen 3)."""

COPIES = 4
"""Elements that come or go in one round of a loop: one load and one store each."""


def time_lanes_nest(scop: Scop, plan: TimeLanes) -> tuple[Node, ...]:
    """The loops of the scop's one statement."""
    statement = scop.statements[plan.statement]
    array = scop.arrays[statement.target.array]
    taken = {*scop.arrays, *scop.sizes}
    time, row, column = statement.indices
    wanted = (f"{time}_tile", f"{column}_tile", row, column, time, "level", f"{array.name}_levels")
    names = []
    for name in wanted:
        names.append(fresh(name, taken))
        taken.add(names[-1])
    *loops, cells = names
    first = (plan.first[1].constant, plan.first[2].constant)
    last = (plan.end[1].constant - 1, plan.end[2].constant - 1)
    variable = Variable(
        name=cells,
        dtype=array.dtype,
        shape=(affine(plan.window), affine(plan.strip + plan.halo), affine(plan.cell)),
        scope="local",
        alignment=64,
    )
    return _Nest(plan, statement, array, variable, tuple(loops), first, last).blocks()


@dataclass(frozen=True, slots=True)
class _Nest:
    """names: of the loops over blocks, strips, rows, columns, lanes and levels. first, last: rows and columns that change."""

    plan: TimeLanes
    statement: Statement
    array: Array
    cells: Variable
    names: tuple[str, ...]
    first: tuple[int, int]
    last: tuple[int, int]

    def blocks(self) -> tuple[Node, ...]:
        block, strip = self.names[:2]
        plan = self.plan
        steps = plan.end[0] - plan.first[0]
        moved = affine(block) * (plan.slant * plan.lag)
        low = moved + self.first[1] + plan.slant * self.first[0]
        high = moved + self.last[1] + plan.slant * (self.last[0] + plan.lag * (plan.lanes - 1)) + 1
        body: tuple[Node, ...] = (Allocate(variable=self.cells, body=(self.rows(),)),)
        stages = For(variable=strip, lower=low // plan.strip * plan.strip, upper=high, step=plan.strip, kind="stage", body=body)  # fmt: skip
        return (For(variable=block, lower=affine(0), upper=steps, step=plan.lanes, kind="pipelined", body=(stages,)),)

    # -- places -----------------------------------------------------------------------------------------------------------------

    @property
    def start(self) -> Affine:
        """The first column of a strip in row 0, with rows counted from the block's first step."""
        return affine(self.names[1]) - affine(self.names[0]) * (self.plan.slant * self.plan.lag)

    @property
    def row(self) -> Affine:
        return affine(self.names[2])

    @property
    def left(self) -> Affine:
        """The strip's first column in a row."""
        return self.start - self.row * self.plan.slant

    @property
    def columns(self) -> tuple[Affine, Affine]:
        """First and end of those in a row of the strip that change."""
        return (
            maximum([affine(self.first[1]), self.left]),
            minimum([affine(self.last[1] + 1), self.left + self.plan.strip]),
        )

    def cell(self, above: int, column: Affine, number: Affine) -> tuple[Affine, ...]:
        """The place of a number of a cell, so many rows before the present one."""
        plan = self.plan
        slot = (self.row + (plan.window * self.deepest - above)) % plan.window
        return (slot, column - self.left + (plan.halo - plan.slant * above), number)

    @property
    def deepest(self) -> int:
        """So many windows' rows that a row's number is positive with them: its remainder needs no sign."""
        lowest = self.first[0] - self.plan.reach[0] - self.plan.lag - self.plan.window
        return max(0, -(lowest // self.plan.window))

    # -- a row ------------------------------------------------------------------------------------------------------------------

    def rows(self) -> Node:
        plan, (up, down, left, right) = self.plan, self.plan.reach
        lowest, highest = self.first[0] - up - plan.lag, self.last[0] + plan.lag * (plan.lanes - 1)
        begin = -((self.last[1] + right + plan.halo - self.start) // plan.slant)
        end = (self.start + (plan.strip - 1 - self.first[1] + left)) // plan.slant + 1
        lower, upper = maximum([affine(lowest), begin]), minimum([affine(highest + 1), end])
        body = (
            self.asked_for(),
            *self.brought(down),
            *self.beside(),
            *self.computed(),
            *self.taken_home(),
            *self.left_behind(),
        )
        return For(variable=self.names[2], lower=lower, upper=upper, body=body)

    def asked_for(self) -> Node:
        """The lines of a row that comes later: rows of a strip are pages apart, so that no core sees them coming."""
        column = affine(self.names[3])
        row, low = self.row + (self.plan.lag + ROWS_AHEAD), self.left - self.plan.slant * ROWS_AHEAD
        one = Prefetch(Place(self.array.name, (row, column)), level=1)
        loop = For(variable=self.names[3], lower=low, upper=low + self.plan.strip, step=self.plan.line, body=(one,))
        return _when(((row, affine(self.last[0])),), (loop,))

    def brought(self, down: int) -> tuple[Node, ...]:
        """Elements that the block has not seen."""
        column = affine(self.names[3])
        row = self.row + self.plan.lag
        one = Assign(
            target=Place(self.cells.name, self.cell(0, column, affine(0))),
            value=Read(self.array.name, (row, column), self.array.dtype),
        )
        loop = self.over_columns(*self.columns, (one,), copies=COPIES)
        return (_when(((row, affine(self.last[0] + down)),), (loop,)),)

    def beside(self) -> tuple[Node, ...]:
        """All levels of columns left of the strip, and of those that never change in it."""
        plan, (_, _, left, right) = self.plan, self.plan.reach
        near, far = affine(self.first[1] - left), affine(self.last[1] + right + 1)
        end = self.left + plan.strip
        made = [self.gathered(maximum([near, self.left - plan.halo]), minimum([self.left, far]), often=True)]
        if left:
            made.append(self.gathered(maximum([near, self.left]), minimum([affine(self.first[1]), end])))
        if right:
            made.append(self.gathered(maximum([affine(self.last[1] + 1), self.left]), minimum([far, end])))
        return tuple(made)

    def gathered(self, lower: Affine, upper: Affine, *, often: bool = False) -> Node:
        plan, (up, down, _, _) = self.plan, self.plan.reach
        column, level = affine(self.names[3]), affine(self.names[5])
        row = self.row - (level - 1) * plan.lag
        one = Assign(
            target=Place(self.cells.name, self.cell(0, column, level)),
            value=Read(self.array.name, (row, column), self.array.dtype),
        )
        begin = 1 - (self.last[0] + down - self.row) // plan.lag
        end = (self.row - (self.first[0] - up)) // plan.lag + 2
        return self.over_columns(lower, upper, (self.over_levels(begin, end, plan.lanes + 1, one, often=often),))

    def over_levels(self, begin: Affine, end: Affine, count: int, one: Node, *, often: bool) -> Node:
        """A loop over levels whose rows the array has; where that runs often and it has all `count`, one that is written out."""
        name = self.names[5]
        some = For(variable=name, lower=maximum([affine(0), begin]), upper=minimum([affine(count), end]), body=(one,))
        if not often:
            return some
        every = For(variable=name, lower=affine(0), upper=affine(count), kind="unroll", factor=count, body=(one,))
        inside = _all(((begin, affine(0)), (affine(count), end)))
        return If(condition=inside, then=(every,), otherwise=(some,))

    def computed(self) -> tuple[Node, ...]:
        """The vectors: where all lanes are at rows that change, and where some are not."""
        plan = self.plan
        lane, block = affine(self.names[4]), affine(self.names[0])
        own = self.row - lane * plan.lag
        value = self.value(own)
        steps = plan.end[0] - plan.first[0]
        runs = _all(((affine(self.first[0]), own), (own, affine(self.last[0])), (block + lane, steps - 1)))
        column = affine(self.names[3])
        before = Read(self.cells.name, self.cell(plan.lag, column, lane), self.array.dtype)
        some = Apply("select", (runs, value, before), self.array.dtype)
        behind = self.row - plan.lag * (plan.lanes - 1)
        bounds = ((affine(self.first[0]), behind), (self.row, affine(self.last[0])), (block + (plan.lanes - 1), steps - 1))  # fmt: skip
        return (If(condition=_all(bounds), then=(self.vectors(value, shared=True),), otherwise=(self.vectors(some),)),)

    def vectors(self, value: Expr, *, shared: bool = False) -> Node:
        lane, column = affine(self.names[4]), affine(self.names[3])
        found = shared_columns(value, self.names[3], self.column_of) if shared and not self.plan.in_order else None
        low, high = self.columns
        target = Place(self.cells.name, self.cell(0, column, lane + 1))
        if found is None:
            nodes: tuple[Node, ...] = (self.over_columns(low, high, (Assign(target=target, value=value),)),)
        else:
            nodes = self.with_columns(found, target)
        return For(
            variable=self.names[4],
            lower=affine(0),
            upper=affine(self.plan.lanes),
            kind="vector",
            factor=self.plan.lanes // self.plan.width,
            body=nodes,
        )

    def with_columns(self, found: Columns, target: Place) -> tuple[Node, ...]:
        """The loop over columns with what several elements of a row have in common in registers."""
        low, high = self.columns
        column = self.names[3]
        names = [f"{self.cells.name}_column{k}" for k in range(len(found.registers))]
        kept = [Read(name, (), self.array.dtype) for name in names]

        def load(k: int, at: Affine) -> Assign:
            return Assign(target=Place(names[k], ()), value=substitute(found.sum, {column: at + found.first + k}))

        ahead = [load(k, low) for k in range(len(names) - 1)]
        value = substitute_registers(found.value, dict(zip(found.registers, kept, strict=True)))
        moves = [Assign(target=Place(names[k], ()), value=kept[k + 1]) for k in range(len(names) - 1)]
        body = (load(len(names) - 1, affine(column)), Assign(target=target, value=value), *moves)
        nodes: tuple[Node, ...] = (
            If(condition=_all(((low, high - 1),)), then=(*ahead, self.over_columns(low, high, body))),
        )
        for name in reversed(names):
            nodes = (
                Allocate(variable=Variable(name=name, dtype=self.array.dtype, shape=(), scope="register"), body=nodes),
            )
        return nodes

    def column_of(self, read: Read) -> int | None:
        """How many columns right of an element a number of a cell is that it is made of; None of other reads."""
        if read.tensor != self.cells.name:
            return None
        slot, place, _ = read.subscripts
        for above in range(self.plan.window):
            own = self.cell(above, affine(self.names[3]), affine(0))
            if own[0] == slot and isinstance(place, Affine) and (place - own[1]).is_constant:
                return (place - own[1]).constant
        return None

    def value(self, row: Affine) -> Expr:
        """What a lane makes of cells."""
        plan = self.plan
        lane, column = affine(self.names[4]), affine(self.names[3])
        places = (affine(self.names[0]) + lane + plan.first[0], row, column)
        value = substitute(self.statement.value, dict(zip(self.statement.indices, places, strict=True)))

        def read(access: Read) -> Expr:
            if access.tensor != self.array.name:
                return access
            di, dj = (
                (s - own).constant
                for s, own in zip(access.subscripts, (row, column), strict=True)
                if isinstance(s, Affine)
            )
            older = (di, dj) >= (0, 0)
            place = self.cell(plan.lag - di if older else -di, column + dj, lane + (0 if older else 1))
            return Read(self.cells.name, place, access.dtype)

        made = map_reads(value, read)
        before = Read(self.cells.name, self.cell(0, column - 1, lane + 1), self.array.dtype)
        return made if self.plan.in_order else _with_chain_last(made, before)

    def taken_home(self) -> tuple[Node, ...]:
        """Elements that the block is done with."""
        column = affine(self.names[3])
        row = self.row - self.plan.lag * (self.plan.lanes - 1)
        one = Assign(
            target=Place(self.array.name, (row, column)),
            value=Read(self.cells.name, self.cell(0, column, affine(self.plan.lanes)), self.array.dtype),
        )
        return (_when(((affine(self.first[0]), row),), (self.over_columns(*self.columns, (one,), copies=COPIES),)),)

    def left_behind(self) -> tuple[Node, ...]:
        """Elements whose further levels are the next strip's."""
        plan = self.plan
        column, lane = affine(self.names[3]), affine(self.names[5])
        one = Assign(
            target=Place(self.array.name, (self.row - lane * plan.lag, column)),
            value=Read(self.cells.name, self.cell(0, column, lane + 1), self.array.dtype),
        )
        begin = -((self.last[0] - self.row) // plan.lag)
        end = (self.row - self.first[0]) // plan.lag + 1
        lanes = self.over_levels(begin, end, plan.lanes - 1, one, often=True)
        low, high = self.columns
        return (self.over_columns(maximum([low, self.left + (plan.strip - plan.slant * plan.lag)]), high, (lanes,)),)

    def over_columns(self, lower: Affine, upper: Affine, body: tuple[Node, ...], *, copies: int = 1) -> For:
        kind: LoopKind = "sequential" if copies == 1 else "unroll"
        return For(variable=self.names[3], lower=lower, upper=upper, kind=kind, factor=copies, body=body)


def _with_chain_last(value: Expr, before: Read) -> Expr:
    """The value with the element before in its row last: all else is there when that is."""
    step = recurrence_of(value, before)
    if step is None or step.reset is not None:
        return value
    dtype = value.dtype
    if step.reduction is None:
        chain = before if step.factor is None else Apply("mul", (step.factor, before), dtype)
        return Apply("add", (step.rest, chain), dtype)
    chain = before if step.factor is None else Apply("add", (step.factor, before), dtype)
    combine = REDUCTIONS[step.reduction].combine
    return value if combine is None else Apply(combine, (step.rest, chain), dtype)


def _all(pairs: tuple[tuple[Affine, Affine], ...]) -> Expr:
    """Whether the first of each pair is at most the second."""
    made: Expr | None = None
    for low, high in pairs:
        one = Apply("le", (IndexValue(low, i64), IndexValue(high, i64)), boolean)
        made = one if made is None else Apply("and", (made, one), boolean)
    assert made is not None, "internal: a condition of nothing"
    return made


def _when(pairs: tuple[tuple[Affine, Affine], ...], nodes: tuple[Node, ...]) -> Node:
    return If(condition=_all(pairs), then=nodes)

"""Exact dependences of a Scop: flow, anti and output by array dataflow, those inside a reduction apart.

Dataflow is computed per array and per reference (one big union costs isl far more), never coalesced. An array whose writes all come before its reads, outside of
any sequential loop or each iteration's in elements of their own, needs no dataflow: composing its writes with its reads gives the same order.

Source: isl user manual, "Dependence Analysis"; Feautrier, "Dataflow analysis of array and scalar references" (IJPP 1991).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import islpy as isl

from polyml.expressions import Subscript, plain_index
from polyml.records import dataclass
from polyml.scop.accesses import access_map, guarded_reads
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.scop.shared_indices import Range, SharedIndices, Times, ranges_of, shared_indices, times_of
from polyml.sets.affine import Affine
from polyml.sets.spaces import maps_of
from polyml.sets.unnumbered import has_numbers, numbered, unnumbered
from polyml.shown import Shown

__all__ = ["Analysis", "Dependences", "analyse", "values_of"]

_OUT = isl.dim_type.out


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependences(Shown):
    """Dependence relations `{ source instance -> sink instance }`.

    flow, anti, output: value-based where the accesses are exact, memory-based where they are indirect; those between updates of one
    reduction are left out. reduction: the left-out ones, which an order may break as long as each element's updates do not run at once
    (or are privatized). live_in: `{ S[i] -> A[e] }` reads of values from before the region; live_out: `{ S[i] -> A[e] }` writes that may be
    seen after it.
    """

    flow: isl.UnionMap
    anti: isl.UnionMap
    output: isl.UnionMap
    reduction: isl.UnionMap
    live_in: isl.UnionMap
    live_out: isl.UnionMap

    @property
    def validity(self) -> isl.UnionMap:
        """What every schedule must respect: flow, anti and output."""
        return self.flow.union(self.anti).union(self.output)

    @property
    def values(self) -> isl.UnionMap:
        """From who makes a value to who reads it, between updates of one reduction as well."""
        return self.flow.union(self.reduction)


_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Reference:
    """One access of one statement. own: the element that an update combines into. guard: the conditions that a read is under."""

    statement: Statement
    array: str
    subscripts: tuple[Subscript, ...]
    relation: isl.UnionMap
    exact: bool
    own: bool
    guard: tuple[str, ...]

    @property
    def key(self) -> _Key:
        """Equal for accesses with the same relation, to the same array."""
        return (
            self.statement.name,
            id(self.statement.domain),
            self.statement.indices,
            self.subscripts,
            self.own,
            self.guard,
        )


class Analysis:
    """The dependences of a scop in its written order, in two steps: first where values go, which says what is computed in vain and is all that is needed to leave that out."""

    def __init__(self, scop: Scop) -> None:
        self._scop = scop
        self._collected = collected = _Collected(scop)
        self._by_order: list[tuple[int, list[_Reference], list[_Reference]]] = []
        for number, (array, (reads, writes)) in enumerate(_references(scop, scop.arrays).items()):
            collected.begin(number)
            if not writes:
                collected.live_in += [r.relation for r in reads]
            elif _straight(scop.arrays[array], collected.order, reads, writes):
                collected.straight(reads, writes)
            else:
                collected.values(reads, writes)
                self._by_order.append((number, reads, writes))
            if writes and scop.arrays[array].kind != "local":
                collected.live_out += [w.relation for w in writes]

    @property
    def values(self) -> isl.UnionMap:
        """From who makes a value to who reads it, between updates of one reduction as well."""
        empty = isl.UnionMap.empty(self._scop.context.get_space())
        return _union([empty, *self._collected.flow, *self._collected.reduction])

    def dependences(self) -> Dependences:
        """All of them; asked for once."""
        collected = self._collected
        for number, reads, writes in self._by_order:
            collected.begin(number)
            collected.orders(reads, writes)
        empty = isl.UnionMap.empty(self._scop.context.get_space())
        return Dependences(
            flow=_union([empty, *collected.flow]),
            anti=_union([empty, *collected.anti]),
            output=_union([empty, *collected.output]),
            reduction=_union([empty, *collected.reduction]),
            live_in=_union([empty, *collected.live_in]),
            live_out=_union([empty, *collected.live_out]),
        )


def analyse(scop: Scop) -> Dependences:
    """The dependences of a scop in its written order."""
    return Analysis(scop).dependences()


def values_of(scop: Scop, array: str) -> tuple[isl.UnionMap, isl.UnionMap]:
    """Where the values of one array go, `{ source instance -> sink instance }` with the updates of reductions, and what is read of it from before."""
    collected = _Collected(scop)
    reads, writes = _references(scop, {array})[array]
    if writes:
        collected.values(reads, writes)
    empty = isl.UnionMap.empty(scop.context.get_space())
    return _union([empty, *collected.flow, *collected.reduction]), _union([empty, *collected.live_in])


class _Collected:
    """Accumulates the relations array by array."""

    def __init__(self, scop: Scop) -> None:
        self.scop = scop
        self.order = {name: k for k, name in enumerate(scop.statements)}
        self._written = {str(m.get_tuple_name(isl.dim_type.in_)): m for m in maps_of(scop.initial)}
        self._times: dict[str, isl.Map] = {}
        self._numbers: dict[str, Times | None] = {}
        self._ranges: dict[str, tuple[Range | None, ...]] = {}
        self._dataflows: dict[int, _Dataflow] = {}
        self.flow: list[isl.UnionMap] = []
        self.anti: list[isl.UnionMap] = []
        self.output: list[isl.UnionMap] = []
        self._reductions: dict[int, list[isl.UnionMap]] = {0: []}
        self._runs: dict[tuple[str, int], isl.UnionMap] = {}
        self._array = 0
        self.live_in: list[isl.UnionMap] = []
        self.live_out: list[isl.UnionMap] = []

    def begin(self, array: int) -> None:
        """What comes now is about this array."""
        self._array = array
        self._reductions.setdefault(array, [])

    @property
    def reduction(self) -> list[isl.UnionMap]:
        """What was found of reductions, array by array."""
        return [relation for found in self._reductions.values() for relation in found]

    def straight(self, reads: Sequence[_Reference], writes: Sequence[_Reference]) -> None:
        """Writes before reads, in one iteration of the loops around: memory-based order is all there is."""
        order = self.order
        for write in writes:
            for read in reads:
                if read.own and read.statement is write.statement:
                    self._reductions[self._array].append(_forward(_compose(write, read)))
                elif order[write.statement.name] < order[read.statement.name]:
                    self.flow.append(_compose(write, read))
            for other in writes:
                if order[write.statement.name] < order[other.statement.name]:
                    self.output.append(_compose(write, other))

    def values(self, reads: Sequence[_Reference], writes: Sequence[_Reference]) -> None:
        """Flow."""
        flow = self.dataflow(reads, writes)
        for read in reads:
            dependence, before = flow.before(read)
            self.live_in.append(before)
            if read.own:
                dependence = self.without_updates(dependence, read, reads)
            self.flow.append(self.widened(dependence, writes, read))

    def orders(self, reads: Sequence[_Reference], writes: Sequence[_Reference]) -> None:
        """Anti and output, after `values`."""
        flow = self.dataflow(reads, writes)
        for write in writes:
            output, _ = flow.before(write)
            anti = flow.reads_before(write)
            if write.own:
                output = self.without_updates(output, write, reads)
                anti = self.without_updates(anti, write, reads)
            self.output.append(self.widened(output, writes, write))
            self.anti.append(self.widened(anti, writes, write))

    def dataflow(self, reads: Sequence[_Reference], writes: Sequence[_Reference]) -> _Dataflow:
        """That of one array; of another scop's analysis where that asked for the same."""
        if self._array not in self._dataflows:
            names = dict.fromkeys(r.statement.name for r in (*reads, *writes))
            key = (
                writes[0].array,
                self.scop.arrays[writes[0].array].shape,
                self.scop.sizes,
                tuple(r.key for r in reads),
                tuple(w.key for w in writes),
                tuple(str(self.time(name)) if name in self._written else "" for name in names),
            )
            found = _FLOWS.pop(key, None) or self._dataflow(reads, writes)
            _FLOWS[key] = self._dataflows[self._array] = found
            if len(_FLOWS) > _KEPT:
                del _FLOWS[next(iter(_FLOWS))]
        return self._dataflows[self._array]

    def _dataflow(self, reads: Sequence[_Reference], writes: Sequence[_Reference]) -> _Dataflow:
        references = (*reads, *writes)
        accesses = [(r.statement, r.subscripts) for r in references]
        guarded = any(r.guard for r in references)
        shared = None if guarded else shared_indices(accesses, self.ranges, self.times)
        times = self.initial({r.statement.name for r in references}, shared, guarded)
        return _Dataflow(reads, writes, times, shared)

    def ranges(self, statement: Statement) -> tuple[Range | None, ...]:
        """Those of a statement's indices that depend on no other one."""
        if statement.name not in self._ranges:
            self._ranges[statement.name] = ranges_of(statement.domain)
        return self._ranges[statement.name]

    def times(self, name: str) -> Times | None:
        """When a statement's instances run, as numbers; None where that is no linear function."""
        if name not in self._numbers:
            time = self.time(name) if name in self._written else None
            linear = time is not None and time.n_basic_map() == 1 and time.is_single_valued()
            self._numbers[name] = times_of(time) if time is not None and linear else None
        return self._numbers[name]

    def initial(self, names: set[str], shared: SharedIndices | None, guarded: bool) -> isl.UnionMap:
        """The written order of some statements, without the dimensions of time that do not tell them apart (dataflow is computed level by level). guarded: whether some of their reads happen in a part of the instances."""
        # A statement without instances has no time.
        timed = [name for name in sorted(names, key=self.order.__getitem__) if name in self._written]
        maps, depths = [self.time(name) for name in timed], [self.scop.statements[name].loop_depth for name in timed]
        numbers = any(depths) and (guarded or has_numbers(maps, depths))
        if shared is not None:
            maps = [shared.time(m) for m in maps]
        depth = maps[0].dim(_OUT) if maps else 0
        constants = [[m.plain_get_val_if_fixed(_OUT, d) for m in maps] for d in range(depth)]
        for d in reversed(range(depth)):
            first = constants[d][0]
            if first.is_int() and all(value.is_int() and value.eq(first) for value in constants[d]):
                maps = [m.project_out(_OUT, d, 1) for m in maps]
        maps = unnumbered(maps) if numbers else maps
        return _union([m.to_union_map() for m in maps])

    def time(self, name: str) -> isl.Map:
        """When a statement's instances run, without conditions on these, which the accesses know: dataflow would split its relations by the pieces of such, too."""
        if name not in self._times:
            written = self._written[name]
            hull = isl.Map.from_basic_map(written.affine_hull())
            self._times[name] = hull if hull.is_single_valued() else written
        return self._times[name]

    def widened(self, dependence: isl.UnionMap, writes: Sequence[_Reference], sink: _Reference) -> isl.UnionMap:
        """What holds for the first or last update of a run, for every update of it: once they may be reordered, any of them can be first."""
        for write in writes:
            if not write.own:
                continue
            run = self.run(write)
            name = write.statement.name
            from_run = _from(dependence, name)
            dependence = dependence.union(run.apply_range(from_run))
        if sink.own:
            dependence = dependence.union(dependence.apply_range(self.run(sink)))
        return dependence

    def run(self, update: _Reference) -> isl.UnionMap:
        """Updates that combine into one element within one iteration of the enclosing sequential loops."""
        key = update.statement.name, self._array
        if key not in self._runs:
            pairs = update.relation.apply_range(update.relation.reverse())
            self._runs[key] = self.within(pairs)
        return self._runs[key]

    def within(self, pairs: isl.UnionMap) -> isl.UnionMap:
        """Pairs of instances in the same iteration of the sequential loops around both, not an instance with itself."""
        result = isl.UnionMap.empty(self.scop.context.get_space())
        for piece in maps_of(pairs):
            source, sink = (self.scop.statements[str(piece.get_tuple_name(end))] for end in (isl.dim_type.in_, _OUT))
            for d in range(source.loop_depth):
                piece = piece.equate(isl.dim_type.in_, d, _OUT, d)
            if source is sink:
                piece = piece.subtract(isl.Map.identity(piece.get_space()))
            result = result.union(piece.to_union_map())
        return result

    def without_updates(self, dependence: isl.UnionMap, sink: _Reference, reads: Sequence[_Reference]) -> isl.UnionMap:
        """The dependence of an update without the part on updates that it commutes with, which goes to the reductions."""
        names = [r.statement.name for r in reads if r.own and self.commute(r, sink, reads)]
        own = self.within(_between(dependence, names, sink.statement.name))
        self._reductions[self._array].append(own)
        return dependence.subtract(own)

    def commute(self, one: _Reference, other: _Reference, reads: Sequence[_Reference]) -> bool:
        """Whether two updates of an array may change places within an iteration of the sequential loops around them: those of one statement, and those of two which combine alike into computed elements that neither reads otherwise.

        Writes of computed elements hide none of those before them, so that each update knows all of these, and who reads knows each update.
        """
        a, b = one.statement, other.statement
        if a is b:
            return True
        if one.exact or other.exact or (a.reduction, a.argument, b.argument) != (b.reduction, None, None):
            return False
        alone = not any(r.statement in (a, b) and not r.own for r in reads)
        return alone and self.loops(a) == self.loops(b)

    def loops(self, statement: Statement) -> tuple[str, ...]:
        """The sequential loops around a statement: where each stands in the one around it."""
        written = self._written.get(statement.name)
        if written is None:
            return ()
        return tuple(str(written.plain_get_val_if_fixed(_OUT, 2 * d)) for d in range(statement.loop_depth))


class _Dataflow:
    """Dataflow of one array, without the indices that all of its accesses share; each answer is computed once, since an update reads what it writes, and scops that are made of each other have most arrays in common."""

    def __init__(
        self,
        reads: Sequence[_Reference],
        writes: Sequence[_Reference],
        times: isl.UnionMap,
        shared: SharedIndices | None,
    ) -> None:
        self._times, self._shared = times, shared
        self._relations = {
            r.key: r.relation if shared is None else shared.without(r.relation) for r in (*reads, *writes)
        }
        self._must = _union([self._relations[w.key] for w in writes if w.exact])
        self._may = _union([self._relations[w.key] for w in writes if not w.exact])
        self._reads = _union([self._relations[r.key] for r in reads])
        self._before: dict[_Key, tuple[isl.UnionMap, isl.UnionMap]] = {}
        self._reads_before: dict[_Key, isl.UnionMap] = {}
        # Keys name domains by where they are, which nothing else is as long as they are kept.
        self._domains = [r.statement.domain for r in (*reads, *writes)]

    def before(self, sink: _Reference) -> tuple[isl.UnionMap, isl.UnionMap]:
        """The last writes before an access, and the accesses of what was there before the region."""
        key = sink.key
        if key not in self._before:
            access = isl.UnionAccessInfo.from_sink(self._relations[key])
            access = access.set_must_source(self._must).set_may_source(self._may)
            found = access.set_schedule_map(self._times).compute_flow()
            dependence, none = numbered(found.get_may_dependence()), numbered(found.get_may_no_source())
            if self._shared is not None:
                dependence, none = self._shared.dependence(dependence), self._shared.accesses(none)
            self._before[key] = dependence, none
        return self._before[key]

    def reads_before(self, write: _Reference) -> isl.UnionMap:
        """The reads before a write with no other write between."""
        key = write.key
        if key not in self._reads_before:
            access = isl.UnionAccessInfo.from_sink(self._relations[key])
            access = access.set_may_source(self._reads).set_kill(self._must)
            found = numbered(access.set_schedule_map(self._times).compute_flow().get_may_dependence())
            self._reads_before[key] = found if self._shared is None else self._shared.dependence(found)
        return self._reads_before[key]


_KEPT = 128
"""Arrays whose dataflow is remembered: those of the scops that are made of one region."""

_FLOWS: dict[_Key, _Dataflow] = {}
"""The last ones, the latest last; compiling is done under one lock."""


def _straight(
    array: Array, order: Mapping[str, int], reads: Sequence[_Reference], writes: Sequence[_Reference]
) -> bool:
    """Whether the array's writes all come before its reads, and no two accesses of an element are in different iterations of sequential loops."""
    if any(r.statement.loop_depth for r in (*reads, *writes)):
        starts = [w for w in writes if not w.own]
        if array.kind not in ("local", "output") or len(starts) > 1 or not _iteration_by_iteration(reads, writes):
            return False
    last_write = max(order[w.statement.name] for w in writes)
    others = [order[r.statement.name] for r in reads if not r.own]
    if others and min(others) <= last_write:
        return False
    return all(w.exact for w in writes)


def _iteration_by_iteration(reads: Sequence[_Reference], writes: Sequence[_Reference]) -> bool:
    """Whether each sequential loop around accesses is a subscript in one and the same place of all of them."""
    accesses = (*reads, *writes)
    for level in range(max(r.statement.loop_depth for r in accesses)):
        inside = [r for r in accesses if r.statement.loop_depth > level]
        places = (
            {d for d, s in enumerate(r.subscripts) if plain_index(s) == r.statement.indices[level]} for r in inside
        )
        if not set.intersection(*places):
            return False
    return True


def _references(scop: Scop, arrays: Collection[str]) -> dict[str, tuple[list[_Reference], list[_Reference]]]:
    """Per array, of these, its reads and its writes, in written order; an update does both."""
    found: dict[str, tuple[list[_Reference], list[_Reference]]] = {array: ([], []) for array in arrays}
    for statement in scop.statements.values():
        reads = guarded_reads(statement.value)
        for access in statement.written:
            reads += [r for s in access.subscripts if not isinstance(s, Affine) for r in guarded_reads(s)]
            if access.array not in found:
                continue
            own = statement.kind == "update"
            reference = _reference(scop, statement, access, (), own)
            found[access.array][1].append(reference)
            if own:
                found[access.array][0].append(reference)
        seen: set[tuple[object, ...]] = set()
        for read, guard in reads:
            if read.tensor in found and (read.tensor, read.subscripts, guard) not in seen:
                seen.add((read.tensor, read.subscripts, guard))
                found[read.tensor][0].append(
                    _reference(scop, statement, Access(read.tensor, read.subscripts), guard, False)
                )
    return found


def _reference(scop: Scop, statement: Statement, access: Access, guard: tuple[str, ...], own: bool) -> _Reference:
    shape = scop.arrays[access.array].shape
    relation = access_map(
        statement.name, statement.indices, access.array, access.subscripts, shape, sizes=scop.sizes, guard=guard
    )
    exact = all(isinstance(s, Affine) for s in access.subscripts)
    relation = relation.intersect_domain(statement.domain)
    return _Reference(statement, access.array, access.subscripts, relation.to_union_map(), exact, own, guard)


def _compose(source: _Reference, sink: _Reference) -> isl.UnionMap:
    return source.relation.apply_range(sink.relation.reverse())


def _forward(pairs: isl.UnionMap) -> isl.UnionMap:
    """Of pairs of instances of one statement, those in written order."""
    result = isl.UnionMap.empty(pairs.get_space())
    for piece in maps_of(pairs):
        later = isl.Map.lex_lt(piece.get_space().domain())
        result = result.union(piece.intersect(later).to_union_map())
    return result


def _from(dependence: isl.UnionMap, name: str) -> isl.UnionMap:
    return _restricted(dependence, lambda source, _: source == name)


def _between(dependence: isl.UnionMap, sources: Collection[str], sink: str) -> isl.UnionMap:
    return _restricted(dependence, lambda source, target: source in sources and target == sink)


def _restricted(dependence: isl.UnionMap, keep: Callable[[str, str], bool]) -> isl.UnionMap:
    """The part whose statements, source and sink, are of that kind."""
    result = isl.UnionMap.empty(dependence.get_space())
    for piece in maps_of(dependence):
        if keep(str(piece.get_tuple_name(isl.dim_type.in_)), str(piece.get_tuple_name(_OUT))):
            result = result.union(piece.to_union_map())
    return result


def _union(relations: Sequence[isl.UnionMap]) -> isl.UnionMap:
    """The union, put together pairwise: each relation is copied a logarithmic number of times."""
    rest = list(relations) or [isl.UnionMap("{ }")]
    while len(rest) > 1:
        rest = [rest[k].union(rest[k + 1]) if k + 1 < len(rest) else rest[k] for k in range(0, len(rest), 2)]
    return rest[0]

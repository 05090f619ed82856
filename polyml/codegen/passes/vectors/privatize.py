"""Reductions along lanes: elements that all lanes combine into become registers with one partial result per lane, and several of those, so that
consecutive steps do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from polyml.codegen.loops import Allocate, Assign, For, Node, Place, UpdateArgument, Variable
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import Use, map_places, subscript_variables, uses, variables_of, walk_nodes
from polyml.dtypes import DType, i32, i64
from polyml.expressions import Const, IndexValue, Read
from polyml.new_names import fresh
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Accumulators", "Partial", "is_fill", "is_short", "private_body", "shared_targets"]


@dataclass(frozen=True, slots=True)
class Partial:
    """A reduction into one element: `target` (for argmax and argmin: the best value, and `argument` its index) by `reduction`.

    index: what holds an index of a lane; of 32 bits where it fits, as many lanes of which go into a register as of most values.
    """

    target: Place
    reduction: str
    dtype: DType
    argument: Place | None = None
    index: DType = field(default=i64, compare=False)

    @property
    def registers(self) -> tuple[tuple[str, DType, int | float | bool], ...]:
        """Wished name, type and initial value of the registers of one accumulator. Those of argmax and argmin are as good as nothing: what is no better need not be looked at twice (llvm/reductions/extrema.py)."""
        alike = {"argmax": "max", "argmin": "min"}.get(self.reduction, self.reduction)
        identity = REDUCTIONS[alike].identity(self.dtype)
        best = (f"{self.target.variable}_part", self.dtype, 0 if identity is None else identity)
        return (best,) if self.argument is None else (best, (f"{self.argument.variable}_part", self.index, -1))


def shared_targets(loop: For, ranges: Ranges, *, precise: bool, vector_bytes: int) -> tuple[Partial, ...]:
    """The reductions in `loop` whose element is the same in all its iterations and is not accessed in another way there.

    `ranges` hold inside the loop. With `precise`, floating-point sums and products are left out. vector_bytes: of a register; shorter ones than AVX-512's have masks as wide as what was compared, of 64 bits beside numbers of 64 bits.
    """
    inside = {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)} | {loop.variable}
    local = {node.variable.name for node in walk_nodes(loop.body) if isinstance(node, Allocate)}
    found: dict[Place, Partial] = {}
    for node in walk_nodes(loop.body):
        partial = _partial(node)
        if partial is None or not _is_invariant(partial, inside, local):
            continue
        if precise and partial.dtype.is_float and partial.reduction in ("sum", "prod"):
            continue
        known = found.get(partial.target)
        suits = partial.dtype.bits < 64 or vector_bytes > _MASKS_IN_VECTORS
        index = i32 if suits and is_short(node, ranges) and (known is None or known.index is i32) else i64
        found[partial.target] = replace(partial, index=index)
    accesses = [(node, use) for node in walk_nodes(loop.body) for use in uses(node)]
    return tuple(p for p in found.values() if not any(_disturbs(p, node, use, ranges) for node, use in accesses))


_MASKS_IN_VECTORS = 32
"""Bytes of a register, at most, where masks are vectors."""


def private_body(nodes: tuple[Node, ...], partials: Sequence[Partial]) -> tuple[Node, ...]:
    """The nodes with each shared element replaced by a stand-in register, named by `_stand_in`."""
    if not partials:
        return nodes
    names = {
        place: _stand_in(p, k) for p in partials for k, place in enumerate((p.target, p.argument)) if place is not None
    }
    change: Callable[[Place], Place] = lambda place: Place(names[place], ()) if place in names else place  # noqa: E731
    return map_places(nodes, place=change, read=lambda read: read)


@dataclass(frozen=True, slots=True)
class Accumulators:
    """The registers of all partial results: `names[u]` maps each stand-in to its register in copy u; `variables[u]` makes them, in the order of
    `partials`."""

    partials: tuple[Partial, ...]
    names: tuple[dict[str, str], ...]
    variables: tuple[tuple[Variable, ...], ...]
    starts: tuple[Const, ...]
    width: int

    @staticmethod
    def make(partials: tuple[Partial, ...], width: int, count: int, taken: set[str]) -> Accumulators:
        """`count` accumulators of `width` lanes per partial result, under fresh names."""
        if not partials:
            return Accumulators((), (), (), (), width)
        names: list[dict[str, str]] = []
        variables: list[tuple[Variable, ...]] = []
        starts = tuple(Const(value, dtype) for p in partials for _, dtype, value in p.registers)
        for _ in range(count):
            copy: dict[str, str] = {}
            made: list[Variable] = []
            for partial in partials:
                for k, (wish, dtype, _value) in enumerate(partial.registers):
                    name = fresh(wish, taken)
                    copy[_stand_in(partial, k)] = name
                    made.append(Variable(name=name, dtype=dtype, shape=(), scope="register", lanes=width))
            names.append(copy)
            variables.append(tuple(made))
        return Accumulators(partials, tuple(names), tuple(variables), starts, width)

    def around(self, parts: tuple[Node, ...], taken: set[str]) -> tuple[Node, ...]:
        """The loops `parts` with the registers made and filled before, combined and written after."""
        if not self.partials:
            return parts
        lane = fresh("lane", taken)
        fills: list[Node] = [
            Assign(target=Place(variable.name, ()), value=start)
            for made in self.variables
            for variable, start in zip(made, self.starts, strict=True)
        ]
        body: tuple[Node, ...] = (self.once(lane, fills), *parts)
        joins = [join for partial in self.partials for join in self.joins(partial)]
        if joins:
            body = (*body, self.once(lane, joins))
        body = (*body, *(last for partial in self.partials for last in self.across(partial)))
        for made in reversed(self.variables):
            for variable in reversed(made):
                body = (Allocate(variable=variable, body=body),)
        return body

    def once(self, lane: str, nodes: Sequence[Node]) -> Node:
        """The nodes for all lanes: a vector loop of one iteration."""
        width = self.width
        return For(
            variable=lane,
            lower=affine(0),
            upper=affine(width),
            step=width,
            kind="vector",
            width=width,
            body=tuple(nodes),
        )

    def joins(self, partial: Partial) -> list[Node]:
        """Accumulators added up lane by lane, in pairs, into the first; those of argmax and argmin are not (a lane may have seen nothing)."""
        if partial.argument is not None:
            return []
        registers = [names[_stand_in(partial, 0)] for names in self.names]
        joined: list[Node] = []
        while len(registers) > 1:
            half = (len(registers) + 1) // 2
            for one, other in zip(registers, registers[half:], strict=False):
                value = Read(other, (), partial.dtype)
                joined.append(Assign(target=Place(one, ()), value=value, reduction=partial.reduction))
            registers = registers[:half]
        return joined

    def across(self, partial: Partial) -> list[Node]:
        """The lanes combined into the element."""
        if partial.argument is None:
            value = Read(self.names[0][_stand_in(partial, 0)], (), partial.dtype)
            return [Assign(target=partial.target, value=value, reduction=partial.reduction, across=True)]
        return [
            UpdateArgument(
                kind="argmax" if partial.reduction == "argmax" else "argmin",
                best=partial.target,
                argument=partial.argument,
                candidate=Read(names[_stand_in(partial, 0)], (), partial.dtype),
                candidate_index=Read(names[_stand_in(partial, 1)], (), partial.index),
                across=True,
            )
            for names in self.names
        ]


def is_fill(node: Node) -> bool:
    """Whether it fills accumulators, or adds them up lane by lane (`Accumulators.once`)."""
    if (
        not isinstance(node, For)
        or node.kind != "vector"
        or node.lower != affine(0)
        or node.upper != affine(node.width)
    ):
        return False
    plain = (isinstance(inner, Assign) and not inner.target.subscripts for inner in node.body)
    return all(plain) and not any(node.variable in variables_of(i.value) for i in node.body if isinstance(i, Assign))


def _stand_in(partial: Partial, register: int) -> str:
    """A name that no variable has."""
    return f"{partial.target}#{register}"


def _partial(node: Node) -> Partial | None:
    match node:
        case Assign(reduction=str(reduction), across=False):
            return Partial(node.target, reduction, node.value.dtype)
        case UpdateArgument(across=False):
            return Partial(node.best, node.kind, node.candidate.dtype, node.argument)
        case _:
            return None


def is_short(node: Node, ranges: Ranges) -> bool:
    """Whether the index of an argmax or argmin is known to have 32 bits, and not to be the greatest number of these, which stands for none where lanes are combined (llvm/reductions/combine.py)."""
    if not isinstance(node, UpdateArgument) or not isinstance(node.candidate_index, IndexValue):
        return False
    low, high = ranges.lowest(node.candidate_index.affine), ranges.highest(node.candidate_index.affine)
    return low is not None and high is not None and 0 <= low <= high < (1 << 31) - 1


def _is_invariant(partial: Partial, inside: set[str], local: set[str]) -> bool:
    for place in (partial.target, partial.argument):
        if place is None:
            continue
        if place.variable in local or any(not isinstance(s, Affine) for s in place.subscripts):
            return False
        if subscript_variables(place.subscripts) & inside:
            return False
    return True


def _disturbs(partial: Partial, node: Node, use: Use, ranges: Ranges) -> bool:
    """Whether an access other than the partial's own updates may touch its elements."""
    own = _partial(node)
    for place in (partial.target, partial.argument):
        if place is None or use.variable != place.variable:
            continue
        if use.subscripts == place.subscripts:
            if own is None or replace(own, dtype=partial.dtype) != partial or not use.write:
                return True
        elif not _differ(place, use, ranges):
            return True
    return False


def _differ(place: Place, use: Use, ranges: Ranges) -> bool:
    """Whether two places of one variable are certainly different elements."""
    pairs = zip(place.subscripts, use.subscripts, strict=True)
    return any(isinstance(a, Affine) and isinstance(b, Affine) and ranges.never_zero(a - b) for a, b in pairs)

"""Long sums of register tiles in parts: what a part sums up starts from zero and is added to the total when it is done.

A chain of n additions may lose n units in the last place of its largest partial sum, and does lose sqrt(n) of them and more where all terms have one sign: each addition rounds as the total is large. In
parts of m terms and n / m parts it is as m + n / m. A part keeps its registers; totals are memory's (the block of a result that several blocks of a reduction add to), or wait on the stack where the sum is one
loop. That costs an addition per register and part, some hundredth of a part's own.

Source: Higham, "The accuracy of floating point summation" (SIAM J. Sci. Comput., 1993), on sums in blocks; Castaldo, Whaley and Chronopoulos, "Reducing floating point error in dot product using the superblock
family of algorithms" (SIAM J. Sci. Comput., 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, nodes_of, walk_nodes, with_body
from polyml.expressions import Const, Read, reads_of
from polyml.new_names import fresh
from polyml.records import dataclass, replace
from polyml.renewed import renewed
from polyml.sets.affine import affine, minimum

__all__ = ["sum_in_parts"]

PART = 512
"""Terms of a part."""

LONG = 4 * PART
"""Terms from which a sum that starts in registers is made in parts."""

INNER = 4
"""Terms that a loop of unknown length inside another one is taken for: taps of a filter."""

SHORT = 64
"""Terms below which what is loaded is added to, term by term."""


def sum_in_parts(function: Function) -> Function:
    """The function with the long sums of its register tiles in parts.

    Rewrite:
        t = y[i]; for (k = a; k < b; k++) t += x[k] * w[k, i]; y[i] = t;
        -> p = 0; for (k = a; k < b; k++) p += x[k] * w[k, i]; t = y[i]; t += p; y[i] = t;
        t = 0; for (k = 0; k < 100000; k++) t += x[k] * w[k, i];
        -> t = 0; for (s = 0; s < 100000; s += 512) { p = 0; for (k = s; k < min(100000, s + 512); k++) p += x[k] * w[k, i]; t += p; }
    """
    registers = {
        node.variable.name: node.variable
        for node in nodes_of(function)
        if isinstance(node, Allocate) and node.variable.scope == "register"
    }
    taken = names_in(function)
    body = _Parts(registers, taken).body(function.body, outside(function))
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Parts:
    registers: Mapping[str, Variable]
    taken: set[str]

    def body(self, nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        made: list[Node] = []
        for node in nodes:
            sums = self.sums(node) if isinstance(node, For) else None
            if isinstance(node, For) and sums is not None:
                self.append(made, node, sums, ranges)
            else:
                inside = ranges.enter(node) if isinstance(node, For) else ranges
                made.append(with_body(node, lambda body, inside=inside: self.body(body, inside)))  # type: ignore[misc]
        return renewed(nodes, made)

    def sums(self, loop: For) -> list[str] | None:
        """The registers that a nest of loops adds to, where it does nothing else."""
        nest = _nest(loop)
        found: list[str] = []
        if any(level.kind != "sequential" for level in nest):
            return None
        for node in walk_nodes(nest[0].body):
            if isinstance(node, Prefetch) or any(node is level for level in nest):
                continue
            if not isinstance(node, Assign) or node.reduction != "sum" or node.across or node.scan is not None:
                return None
            variable = self.registers.get(node.target.variable)
            if variable is None or not variable.dtype.is_float:
                return None
            found.append(variable.name)
        names = dict.fromkeys(found)
        reads = {r.tensor for n in walk_nodes(loop.body) if isinstance(n, Assign) for r in reads_of(n.value)}
        return list(names) if names and not reads & set(names) else None

    def append(self, made: list[Node], loop: For, sums: Sequence[str], ranges: Ranges) -> None:
        """The nest behind what comes before it, in parts where it is long."""
        nest = _nest(loop)
        lengths, inside = list[int](), ranges
        for level in nest:
            trips = inside.highest(level.upper - level.lower)
            unknown = INNER if lengths else LONG
            lengths.append(unknown if trips is None else -(-trips // level.step))
            inside = inside.enter(level)
        terms = prod(lengths) * len([n for n in nest[-1].body if isinstance(n, Assign)]) // len(sums)
        loaded = _loads(made, sums)
        if terms >= LONG:
            made.append(self.in_strips(nest, lengths, sums))
        elif terms >= SHORT and any(isinstance(n, Assign) and isinstance(n.value, Read) for n in walk_nodes(loaded)):
            del made[len(made) - len(loaded) :]
            made.append(self.part(loop, sums, loaded))
        else:
            made.append(loop)

    def in_strips(self, nest: Sequence[For], lengths: Sequence[int], sums: Sequence[str]) -> For:
        """Parts as long as inner loops of the nest, or pieces of the innermost one."""
        level, terms = len(nest) - 1, lengths[-1]
        while level and terms * lengths[level - 1] <= PART:
            level -= 1
            terms *= lengths[level]
        if level and 2 * terms <= PART:
            # Far from a part: several iterations of the loop around are one.
            level -= 1
            terms *= lengths[level]
        inner = nest[level]
        if terms > 2 * PART or level == 0:
            strip = fresh(f"{inner.variable}_part", self.taken)
            size = max(PART // (terms // lengths[level]), 1) * inner.step
            piece = replace(inner, lower=affine(strip), upper=minimum([inner.upper, affine(strip) + size]))
            made: Node = replace(inner, variable=strip, step=size, body=(self.part(piece, sums, ()),))
        else:
            made = self.part(inner, sums, ())
        for outer in reversed(nest[:level]):
            made = replace(outer, body=tuple(made if isinstance(n, For) else n for n in outer.body))
        assert isinstance(made, For), "internal: a nest of sums that is no loop"
        return made

    def part(self, loop: For, sums: Sequence[str], totals: Sequence[Node]) -> Node:
        """The loop with registers of its own, which are then added to the totals, when these are there."""
        names = {name: fresh(f"{name}_part", self.taken) for name in sums}
        zeros = [Assign(target=Place(p, ()), value=Const(0.0, self.registers[n].dtype)) for n, p in names.items()]
        adds = [
            Assign(target=Place(n, ()), value=Read(p, (), self.registers[n].dtype), reduction="sum")
            for n, p in names.items()
        ]
        body: tuple[Node, ...] = (*zeros, _renamed(loop, names), *_added(totals, adds))
        for name, own in reversed(names.items()):
            body = (Allocate(variable=replace(self.registers[name], name=own), body=body),)
        return body[0]


def _added(totals: Sequence[Node], adds: Sequence[Assign]) -> tuple[Node, ...]:
    """The totals' first values, then what is added to them. Where a condition decides between memory's and others (in the first block of a reduction), each side adds to its own: all values of memory in
    registers beside all parts would be more than there are."""
    if len(totals) != 1 or not isinstance(condition := totals[0], If):
        return (*totals, *adds)
    starts = (*condition.then, *condition.otherwise)
    if len(starts) != 2 * len(adds) or not all(isinstance(n, Assign) for n in starts):
        return (*totals, *adds)
    first, other = (
        {n.target.variable: n for n in side if isinstance(n, Assign)} for side in (condition.then, condition.otherwise)
    )
    if not first.keys() == other.keys() == {add.target.variable for add in adds}:
        return (*totals, *adds)

    def both(start: Assign, add: Assign) -> tuple[Assign, ...]:
        # A part starts from zero, and is none with a sign.
        from_zero = isinstance(start.value, Const) and start.value.value == 0
        return (replace(add, reduction=None),) if from_zero else (start, add)

    then = tuple(n for add in adds for n in both(first[add.target.variable], add))
    otherwise = tuple(n for add in adds for n in both(other[add.target.variable], add))
    return (replace(condition, then=then, otherwise=otherwise),)


def _nest(loop: For) -> list[For]:
    """The loop and those inside, each of which is the only one that the one around has; terms that are left over when one was unrolled stand beside it."""
    nest = [loop]
    while True:
        inner = [node for node in nest[-1].body if isinstance(node, For)]
        if len(inner) != 1:
            return nest
        nest.append(inner[0])


def _loads(before: Sequence[Node], sums: Sequence[str]) -> tuple[Node, ...]:
    """The last nodes, as far as they do nothing but give these registers their first values."""
    count = 0
    while count < len(before) and _is_start(before[-1 - count], sums):
        count += 1
    return tuple(before[len(before) - count :])


def _is_start(node: Node, sums: Sequence[str]) -> bool:
    match node:
        case Assign(target=target, value=Const() | Read() as value, reduction=None, scan=None):
            moved = isinstance(value, Const) or (value.tensor not in sums and bool(value.subscripts))
            return target.variable in sums and not target.subscripts and moved
        case If(then=then, otherwise=otherwise):
            return all(_is_start(inner, sums) for inner in (*then, *otherwise))
        case _:
            return False


def _renamed(loop: For, names: Mapping[str, str]) -> For:
    """The loop with its sums in other registers."""

    def visit(node: Node) -> Node:
        if isinstance(node, Assign) and node.target.variable in names:
            return replace(node, target=Place(names[node.target.variable], ()))
        return with_body(node, lambda body: tuple(visit(inner) for inner in body))

    renamed = visit(loop)
    assert isinstance(renamed, For), "internal: a loop stays one"
    return renamed

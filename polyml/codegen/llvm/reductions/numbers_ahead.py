"""Operands of candidates for a minimum or maximum, looked at once, ahead of the loops that take each of them many times.

An extremum that hands NaN on takes three instructions on x86, one that need not takes one. A candidate `x + y` is no NaN where neither is, and neither is -inf (for a minimum; for a maximum +inf). In a product
over such sums (shortest paths, min-plus matrices) each x and each y is part of many candidates. So they are read once more in loops of their own, and what these find decides which of two loops
runs: the one for numbers, or the exact one (extrema.py).

    for (i ..) for (j ..) for (k ..) t = min(t, x[i, k] + y[k, j])
    -> above = true; for (i ..) for (k ..) above &= x[i, k] > -inf               (and y the same)
       for (i ..) for (j ..) for (k .., where above: no NaN) t = min(t, x[i, k] + y[k, j])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

from polyml.codegen.llvm.reductions.operands import Asked, asked_by
from polyml.codegen.loops import (
    Allocate,
    Assign,
    Block,
    For,
    Function,
    If,
    Node,
    Place,
    Prefetch,
    UpdateArgument,
    Variable,
)
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import subscript_variables, variables_by_name, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, IndexValue, Read, Subscript
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["look_ahead"]

LEAST_USES = 4
"""How often the loops around take an element, at least, for it to be looked at once more."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Loops that look at elements of an array, without the flag that they clear. dropped: of the loops around the elements' user those that the elements do not depend on, and that may have no iteration:
    then nobody knows whether the elements are there."""

    array: str
    loops: tuple[For, ...]
    elements: tuple[Asked, ...]
    dropped: tuple[For, ...]

    def nodes(self, flag: str) -> tuple[Node, ...]:
        body: tuple[Node, ...] = tuple(
            Assign(target=Place(flag, ()), value=Apply(op, (read, Const(limit, read.dtype)), boolean), reduction="all")
            for read, (op, limit) in self.elements
        )
        for loop in reversed(self.loops):
            body = (replace(loop, kind="vector" if loop.kind == "vector" else "sequential", body=body),)
        for loop in self.dropped:
            some = Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean)
            body = (If(condition=some, then=body),)
        return body


def look_ahead(function: Function) -> Function:
    """The function with looks at the operands of its minima and maxima, and loops that name the flags (`For.if_numbers`); the same where there are none."""
    search = _Search(variables_by_name(function))
    search.walk(function.body, (), outside(function))
    if not search.looks:
        return function
    taken = names_in(function)
    return replace(function, body=_Insertion(search.looks, search.touched, taken).body(function.body))


@dataclass(slots=True)
class _Touched:
    """What each node makes or writes, with all that is inside it."""

    known: dict[int, tuple[Node, frozenset[str]]] = field(default_factory=dict)

    def by(self, node: Node) -> frozenset[str]:
        match node:
            case Assign():
                return frozenset((node.target.variable,))
            case UpdateArgument():
                return frozenset((node.best.variable, node.argument.variable))
            case Prefetch():
                return frozenset()
            case _:
                pass
        found = self.known.get(id(node))
        if found is None:
            own = [node.variable.name] if isinstance(node, Allocate) else []
            inner = (*node.then, *node.otherwise) if isinstance(node, If) else node.body
            found = (node, frozenset(own).union(*map(self.by, inner)))
            self.known[id(node)] = found
        return found[1]


@dataclass(slots=True)
class _Search:
    """looks: by the identity of the node that they come before, each with the identity of the loop that asks for it."""

    variables: Mapping[str, Variable]
    looks: dict[int, list[tuple[_Look, int]]] = field(default_factory=dict)
    touched: _Touched = field(default_factory=_Touched)

    def walk(self, nodes: Sequence[Node], path: tuple[tuple[Node, Ranges], ...], ranges: Ranges) -> None:
        for node in nodes:
            match node:
                case For():
                    asked = asked_by(node, self.variables)
                    if asked:
                        self.place(node, asked, path)
                    else:
                        self.walk(node.body, (*path, (node, ranges)), ranges.enter(node))
                case Allocate() | Block():
                    self.walk(node.body, (*path, (node, ranges)), ranges)
                case If():
                    self.walk((*node.then, *node.otherwise), (*path, (node, ranges)), ranges)
                case _:
                    pass

    def place(self, loop: For, asked: Sequence[Asked], path: tuple[tuple[Node, Ranges], ...]) -> None:
        """A look for each array, as far out as nobody writes it; none where one of them has no place that pays."""
        found: list[tuple[int, _Look]] = []
        for array in dict.fromkeys(read.tensor for read, _ in asked):
            elements = tuple((read, bound) for read, bound in asked if read.tensor == array)
            made = self._look(array, elements, loop, path)
            if made is None:
                return
            found.append(made)
        for before, look in found:
            self.looks.setdefault(before, []).append((look, id(loop)))

    def _look(
        self, array: str, elements: tuple[Asked, ...], loop: For, path: tuple[tuple[Node, Ranges], ...]
    ) -> tuple[int, _Look] | None:
        """The node that it comes before (its identity), and the look."""
        first = len(path)
        while first and self.passes(path[first - 1][0], array):
            first -= 1
        lanes = [at for at, (node, _) in enumerate(path) if isinstance(node, For) and node.kind == "vector"]
        around = [(node, ranges) for node, ranges in path[first:] if isinstance(node, For)]
        if not around or any(at < first for at in lanes):
            return None
        every = [*(node for node, _ in around), loop]
        needed = subscript_variables(s for read, _ in elements for s in read.subscripts)
        for inner in reversed(every):
            if inner.variable in needed:
                needed |= inner.lower.variables() | inner.upper.variables()
        uses, unsure, unknown = [], [], False
        inside = {inner.variable for inner in every}
        for inner, ranges in around:
            if inner.variable in needed:
                continue
            span = inner.upper - inner.lower
            trips = ranges.highest(span)
            uses.append(LEAST_USES if trips is None else -(-trips // inner.step))
            least = ranges.lowest(span)
            if least is None or least <= 0:
                unknown = unknown or bool(inside & (inner.lower.variables() | inner.upper.variables()))
                unsure.append(inner)
        if prod(uses) < LEAST_USES:
            return None
        ranges = path[first][1]
        for inner in every:
            ranges = ranges.enter(inner) if inner.variable in needed else ranges
        if all(ranges.is_element(self.variables[read.tensor].shape, read.subscripts) for read, _ in elements):
            unsure = []  # what nobody uses, and perhaps nobody wrote, may be looked at in vain
        elif unknown:
            return None
        loops = [replace(inner, body=()) for inner in every if inner.variable in needed]
        return id(path[first][0]), self._condensed(_Look(array, tuple(loops), elements, tuple(unsure)), loop)

    def passes(self, node: Node, array: str) -> bool:
        """Whether a look at the array may stand before the node just as well as inside: nothing in it writes or makes the array, and it always runs what it has inside."""
        runs = isinstance(node, Allocate) or (
            isinstance(node, For) and node.kind in ("sequential", "parallel", "vector")
        )
        return runs and array not in self.touched.by(node)

    def _condensed(self, look: _Look, user: For) -> _Look:
        """The look with lanes along its innermost loop, where the array lies along that and no other loop has lanes."""
        width = max((self.variables[n.target.variable].lanes for n in user.body if isinstance(n, Assign)), default=1)
        if width == 1 or any(loop.kind == "vector" for loop in look.loops) or look.loops[-1].variable != user.variable:
            return look
        rows: dict[tuple[tuple[Subscript, ...], tuple[str, float]], list[int]] = {}
        for read, bound in look.elements:
            *outer, last = read.subscripts
            along = [s.stride(user.variable) for s in read.subscripts if isinstance(s, Affine)]
            if not isinstance(last, Affine) or along != [*(0 for _ in outer), 1]:
                return look
            rows.setdefault(((*outer, last - last.constant), bound), []).append(last.constant)
        if self.variables[look.array].memory_strides[-1] != 1:
            return look
        elements = []
        for (subscripts, bound), ahead in rows.items():
            first, last = min(ahead), subscripts[-1]
            if sorted(ahead) != list(range(first, first + user.step)) or not isinstance(last, Affine):
                return look
            elements.append((Read(look.array, (*subscripts[:-1], last + first), look.elements[0][0].dtype), bound))
        inner = replace(look.loops[-1], kind="vector", step=width, width=width, masked=True)
        return replace(look, loops=(*look.loops[:-1], inner), elements=tuple(elements))


@dataclass(slots=True)
class _Insertion:
    """flags: of loops that are still to come, by their identities, what they ask for."""

    looks: Mapping[int, Sequence[tuple[_Look, int]]]
    touched: _Touched
    taken: set[str]
    flags: dict[int, dict[str, None]] = field(default_factory=dict)

    def body(self, nodes: tuple[Node, ...], known: Mapping[_Look, str] | None = None) -> tuple[Node, ...]:
        """The nodes with looks ahead of those that they are for, and their flags around all that is behind. known: looks of nodes before that still hold."""
        held, made = dict(known or {}), list[Node]()
        for at, node in enumerate(nodes):
            wanted = self.looks.get(id(node), ())
            added = {
                look: fresh(f"{look.array}_numbers", self.taken)
                for look in dict.fromkeys(look for look, _ in wanted)
                if look not in held
            }
            held |= added
            for look, loop in wanted:
                self.flags.setdefault(loop, {})[held[look]] = None
            if added:
                rest = (self.node(node), *self.body(nodes[at + 1 :], self.after(node, held)))
                return (*made, _behind(added, rest))
            made.append(self.node(node))
            held = self.after(node, held)
        return tuple(made)

    def after(self, node: Node, held: Mapping[_Look, str]) -> dict[_Look, str]:
        """The looks that the node leaves as they are."""
        touched = self.touched.by(node) if held else ()
        return {look: flag for look, flag in held.items() if look.array not in touched}

    def node(self, node: Node) -> Node:
        flags = self.flags.pop(id(node), None)
        if isinstance(node, For) and flags is not None:
            return replace(node, if_numbers=tuple(flags))
        return with_body(node, self.body)


def _behind(added: Mapping[_Look, str], nodes: tuple[Node, ...]) -> Node:
    """The looks, and then the nodes, with the flags."""
    looks = [
        node
        for look, flag in added.items()
        for node in (Assign(target=Place(flag, ()), value=Const(True, boolean)), *look.nodes(flag))
    ]
    made: tuple[Node, ...] = (*looks, *nodes)
    for flag in added.values():
        made = (Allocate(variable=Variable(name=flag, dtype=boolean, shape=(), scope="local"), body=made),)
    return made[0]

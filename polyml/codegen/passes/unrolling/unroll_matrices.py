"""Nests over small matrices that each lane has one of are written out: an element is then loaded once for all that use it, and what a lane keeps of its own is in registers.

A loop along rows of 3 reads the same nine elements over and over, each of them one lane after another, since lanes lie 9 elements apart. Written out each is a value; and all of them together lie side by side, and are shuffled
(codegen/llvm/memory/phases.py). Cofactors, products of small matrices, points in space and their normals are such nests. So are those in each step of a recurrence: of a long loop inside of the lanes' each nest is written out for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, substitute_nodes, variables_by_name, walk_nodes, with_body
from polyml.expressions import Subscript, reads_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["unroll_matrices"]

MOST = 96
"""Assignments of an iteration for all lanes, at most, when all is written out."""

LONGEST = 8
"""Iterations of a loop, at most: rows of more are no small matrices, and are transposed in blocks where lanes go across them (passes/transposes)."""

LARGEST = 16
"""Elements of what each lane keeps, at most: more are no registers."""

AGAIN = 2
"""Times that elements apart from each other are read, at least, on average."""


def unroll_matrices(function: Function) -> Function:
    """The function with the loops in such vector loops marked for unrolling.

    Rewrite:
        vector(8) for (n ..) for (i = 0; i < 3; i++) for (j = 0; j < 3; j++) c[n, i, j] = a[n, (i + 1) % 3, j] * a[n, i, j];
        -> vector(8) for (n ..) unroll for (i ..) unroll for (j ..) ..
    """
    return map_loops(function, _Matrices(variables_by_name(function), _of_long_ones(function)).unrolled)


def _of_long_ones(function: Function) -> frozenset[str]:
    """The variables of lanes that have too many assignments inside in one of their loops: the others, for what is left of rows and vectors, are not written out either, as they run seldom, and are most of the code then."""
    loops = [node for node in nodes_of(function) if isinstance(node, For) and node.kind == "vector"]
    return frozenset(loop.variable for loop in loops if (_count(loop.body, marked=True) or 0) > MOST)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """long: variables of lanes whose loops stay as they are."""

    variables: Mapping[str, Variable]
    long: frozenset[str]

    def unrolled(self, loop: For, _ranges: Ranges, _lanes: For | None) -> For | None:
        if loop.kind != "vector" or loop.width == 1:
            return None
        if self.pays(loop):
            return replace(loop, body=_written_out(loop.body))
        body = self.in_steps(loop.body, loop, _kept(loop.body), stepping=False)
        return loop if body is loop.body else replace(loop, body=body)

    def pays(self, lanes: For) -> bool:
        """Whether there are loops inside, of so few iterations, that read elements again, or make what stays in registers then."""
        if lanes.variable in self.long:
            return False
        loops = [node for node in walk_nodes(lanes.body) if isinstance(node, For)]
        count = _count(lanes.body) if loops else None
        if count is None or count > MOST:
            return False
        kept = _kept(lanes.body)
        places, reads = set[tuple[str, Affine]](), 0
        for read in (read for copy in _copies(lanes.body) for read in reads_of(copy.value)):
            if read.tensor in kept:
                return True
            flat = self.flat(read.tensor, read.subscripts)
            if flat is not None and flat.stride(lanes.variable) not in (None, 0, 1):
                places.add((read.tensor, flat))
                reads += 1
        return bool(places) and reads >= AGAIN * len(places)

    def in_steps(
        self, nodes: tuple[Node, ...], lanes: For, kept: frozenset[str], *, stepping: bool
    ) -> tuple[Node, ...]:
        """Nests in the iterations of longer loops, each of them written out where it is short and reads or makes what is to stay in registers from one nest to the next."""

        def visit(node: Node) -> Node:
            match node:
                case For() if _trips(node) is None and node.kind == "sequential":
                    return with_body(node, lambda body: self.in_steps(body, lanes, kept, stepping=True))
                case For() if stepping and self.is_short(node, lanes) and _touches(node, kept):
                    return _written_out((node,))[0]
                case Allocate() | Block() | If():
                    return with_body(node, lambda body: self.in_steps(body, lanes, kept, stepping=stepping))
                case _:
                    return node

        return renewed(nodes, map(visit, nodes))

    def is_short(self, nest: For, lanes: For) -> bool:
        """Whether it is few assignments when it is written out; an access whose lanes lie apart, or are told by tensors, takes as many as there are lanes."""
        count = _count((nest,), marked=True)
        if count is None or count > MOST:
            return False
        copies = list(_copies((nest,)))
        apart = sum(self.is_apart(copy.target.variable, copy.target.subscripts, lanes) for copy in copies)
        reads = (read for copy in copies for read in reads_of(copy.value))
        apart += sum(self.is_apart(read.tensor, read.subscripts, lanes) for read in reads)
        return count + lanes.width * apart <= MOST

    def is_apart(self, name: str, subscripts: tuple[Subscript, ...], lanes: For) -> bool:
        variable = self.variables.get(name)
        if variable is None or variable.scope == "register":
            return False
        flat = flat_element(variable, subscripts)
        return flat is None or flat.stride(lanes.variable) not in (0, 1)

    def flat(self, name: str, subscripts: tuple[Subscript, ...]) -> Affine | None:
        variable = self.variables.get(name)
        return None if variable is None or variable.scope == "register" else flat_element(variable, subscripts)


def _kept(nodes: tuple[Node, ...]) -> frozenset[str]:
    """Small scratch memory of each lane."""
    allocations = (node for node in walk_nodes(nodes) if isinstance(node, Allocate))
    return frozenset(node.variable.name for node in allocations if 1 < _elements(node.variable) <= LARGEST)


def _touches(node: Node, names: frozenset[str]) -> bool:
    assigns = [inner for inner in walk_nodes((node,)) if isinstance(inner, Assign)]
    return any(a.target.variable in names or any(read.tensor in names for read in reads_of(a.value)) for a in assigns)


def _elements(variable: Variable) -> int:
    """Of scratch memory with one for each lane; 0 for other variables."""
    if variable.scope != "local" or variable.lanes == 1 or variable.bytes is None:
        return 0
    return variable.bytes // variable.dtype.itemsize


def _trips(loop: For, *, marked: bool = False) -> int | None:
    span = loop.upper - loop.lower
    sequential = loop.kind == "sequential" or (marked and loop.kind == "unroll")
    few = span.is_constant and span.constant <= LONGEST
    plain = sequential and not loop.if_numbers and loop.lower.is_constant
    return max(0, -(-span.constant // loop.step)) if plain and few else None


def _count(nodes: tuple[Node, ...], *, marked: bool = False) -> int | None:
    """Assignments when all loops are written out; None where something else is inside, or a loop may be longer. marked: loops may be marked for unrolling already (unroll_sums.py)."""
    total = 0
    for node in nodes:
        match node:
            case Assign(scan=None, across=False):
                total += 1
            case Allocate() | Block() | If():
                inside = _count((*node.then, *node.otherwise) if isinstance(node, If) else node.body, marked=marked)
                if inside is None:
                    return None
                total += inside
            case For():
                trips, inside = _trips(node, marked=marked), _count(node.body, marked=marked)
                if trips is None or inside is None:
                    return None
                total += trips * inside
            case _:
                return None
    return total


def _copies(nodes: tuple[Node, ...]) -> Iterator[Assign]:
    """The assignments inside of loops when these are written out."""
    for node in nodes:
        match node:
            case For():
                for at in range(_trips(node, marked=True) or 0):
                    yield from _assigns(substitute_nodes(node.body, {node.variable: node.lower + at * node.step}))
            case Allocate() | Block():
                yield from _copies(node.body)
            case If():
                yield from _copies((*node.then, *node.otherwise))
            case _:
                pass


def _assigns(nodes: tuple[Node, ...]) -> Iterator[Assign]:
    """The same, and those that no loop is around."""
    for node in nodes:
        match node:
            case Assign():
                yield node
            case Allocate() | Block():
                yield from _assigns(node.body)
            case If():
                yield from _assigns((*node.then, *node.otherwise))
            case _:
                yield from _copies((node,))


def _written_out(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    def visit(node: Node) -> Node:
        node = with_body(node, _written_out)
        if not isinstance(node, For) or node.kind != "sequential":
            return node
        return replace(node, kind="unroll", factor=_trips(node) or 1)

    return tuple(visit(node) for node in nodes)

"""Memory elements that stay put while a piece of code reads and writes them become registers (Callahan, Carr, Kennedy, "Improving register
allocation for subscripted variables", PLDI 1990).

A region is the body of a loop, branch or allocation. An element whose address does not move within the region is loaded before its first access
there (not when that access overwrites it), lives in a register, and is stored after its last. So initialization, reduction loop and epilogue of
one output element share a register, per lane and per jammed copy. The widest region wins.
"""

from __future__ import annotations

from typing import assert_never

from polyml.codegen.element_accesses import Certainties, Element, ElementAccess, Lanes, accesses_of, may_overlap
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
from polyml.codegen.passes.registers.never_read import without_never_read
from polyml.codegen.passes.registers.promotions import (
    Promotion,
    guarded_loop,
    loaded_where_kept,
    row_by_row,
    with_registers,
)
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import names_read, nodes_of, subscript_variables, targets_of, walk_nodes, with_body
from polyml.dtypes import DType
from polyml.expressions import Subscript
from polyml.new_names import fresh
from polyml.records import dataclass, replace
from polyml.renewed import renewed

__all__ = ["scalar_replacement"]


def scalar_replacement(function: Function) -> Function:
    """The function with elements that are read and written in one place kept in registers, and scratch memory that is never read left out.

    Runs after the passes that copy bodies: it takes each jammed copy and vector as an element of its own. Elements that another access may alias, that
    nothing is sure to access, or that a parallel loop inside shares, stay in memory.
    """
    types = {v.name: v.dtype for v in function.arguments}
    read, written = set[str](), set[str]()
    for node in nodes_of(function):
        if isinstance(node, Allocate) and node.variable.scope not in ("private", "register"):
            types[node.variable.name] = node.variable.dtype
        targets = [place.variable for place in targets_of(node)]
        targets += node.scan.carries if isinstance(node, Assign) and node.scan is not None else ()
        read |= names_read(node)
        written.update(targets)
        if not isinstance(node, Assign) or node.reduction is not None:
            read.update(targets)
    # Other threads update such elements meanwhile.
    shared = {n.target.variable for n in nodes_of(function) if isinstance(n, Assign) and n.atomic}
    types = {name: dtype for name, dtype in types.items() if name in (read & written) - shared}
    taken = names_in(function)
    body = _Replacement(types, taken).region(function.body, outside(function), None) if types else function.body
    body = without_never_read(body)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Shape:
    """An element's subscripts: their terms, how far each moves from lane to lane (None: by no one number), and their constants. The copies of a register tile differ in the last."""

    terms: tuple[object, ...]
    steps: tuple[int | None, ...]
    constants: tuple[int, ...]

    @staticmethod
    def of(element: Element, lanes: Lanes | None) -> _Shape:
        subscripts = element[1]
        steps = tuple(0 if lanes is None else s.stride(lanes.variable) for s in subscripts)
        return _Shape(tuple(s.terms for s in subscripts), steps, tuple(s.constant for s in subscripts))

    def never_meets(self, other: _Shape, lanes: Lanes | None) -> bool:
        """Whether constants alone say so: most pairs are copies, and `may_overlap` takes its time."""
        if self.terms != other.terms:
            return False
        for a, b, step in zip(self.constants, other.constants, self.steps, strict=True):
            if a == b or step is None:
                continue
            if step == 0 or lanes is None or (a - b) % step or abs((a - b) // step) >= lanes.width:
                return True
        return False


_Written = tuple[str, frozenset[str]]
"""An element that is written: the array, and the variables that its subscripts depend on."""


class _Replacement:
    """lanes: of the scratch memory around what is visited, how many lanes have elements of their own (1: none)."""

    def __init__(self, types: dict[str, DType], taken: set[str]) -> None:
        self.types = types
        self.lanes: dict[str, int] = {}
        self.taken = taken
        self.known: Certainties = {}
        self.written: dict[int, tuple[Node, frozenset[_Written]]] = {}

    def region(self, nodes: tuple[Node, ...], ranges: Ranges, lanes: Lanes | None) -> tuple[Node, ...]:
        """The region's nodes after promotion here and in the regions inside."""
        if len(nodes) == 1 and isinstance(nodes[0], Allocate):
            inside = self.inside(nodes[0], ranges, lanes)  # the same region once more
            return nodes if inside is nodes[0] else (inside,)
        promotions = self.promotions(nodes, ranges, lanes)
        made: list[Node] = []
        for position, node in enumerate(nodes):
            here = [p for p in promotions if p.first <= position <= p.last]
            made += [p.fetch() for p in here if p.first == position and p.load and p.guard is None]
            guarded = [p for p in here if p.guard is not None]
            changed = self.inside(with_registers(node, here), ranges, lanes)
            made.append(guarded_loop(changed, guarded) if guarded else changed)
            made += [p.write_back() for p in row_by_row(p for p in here if p.last == position and p.guard is None)]
        if renewed(nodes, made) is nodes:
            return nodes
        body = loaded_where_kept(made, lanes)
        for promotion in reversed(promotions):
            body = (Allocate(variable=promotion.register, body=body),)
        return body

    def inside(self, node: Node, ranges: Ranges, lanes: Lanes | None) -> Node:
        if isinstance(node, For):
            ranges = ranges.enter(node)
            if node.kind == "vector" and node.width > 1:
                lanes = Lanes(node.variable, node.width)
        elif isinstance(node, Allocate):
            self.lanes[node.variable.name] = node.variable.lanes  # another loop's may have the same name
        return with_body(node, lambda body: self.region(body, ranges, lanes))

    def staying(self, node: Node) -> frozenset[_Written]:
        """The elements that the node and what is below it write, as far as they do not move with a loop of these."""
        found = self.written.get(id(node))
        if found is not None:
            return found[1]
        match node:
            case Assign():
                made = self.places(node.target)
            case UpdateArgument():
                made = self.places(node.best, node.argument)
            case Prefetch():
                made = frozenset()
            case For():
                inside = frozenset[_Written]().union(*map(self.staying, node.body))
                made = frozenset((name, moves) for name, moves in inside if node.variable not in moves)
            case If():
                made = frozenset[_Written]().union(*map(self.staying, (*node.then, *node.otherwise)))
            case Allocate() | Block():
                made = frozenset[_Written]().union(*map(self.staying, node.body))
            case _:
                assert_never(node)
        self.written[id(node)] = node, made  # with the node, whose identity nobody else may have
        return made

    def places(self, *targets: Place) -> frozenset[_Written]:
        return frozenset((t.variable, subscript_variables(t.subscripts)) for t in targets if t.variable in self.types)

    def promotions(self, nodes: tuple[Node, ...], ranges: Ranges, lanes: Lanes | None) -> list[Promotion]:
        """The elements that become registers in this region, in order of their first access."""
        # Most regions write nothing that stays put: it takes no more than a look to see that.
        staying = {name for node in nodes for name, _ in self.staying(node)}
        staying -= (
            {node.variable.name for node in walk_nodes(nodes) if isinstance(node, Allocate)} if staying else set()
        )
        if not staying:
            return []
        where: dict[Element, list[tuple[int, ElementAccess]]] = {}
        by_variable: dict[str, dict[tuple[tuple[Subscript, ...], tuple[object, ...]], ElementAccess]] = {}
        for position, node in enumerate(nodes):
            for access in accesses_of(node, ranges, of=staying, known=self.known):
                element = None if access.indirect else access.element
                # Loops of one name may have other bounds.
                path = tuple((loop.variable, loop.lower, loop.upper) for loop in access.loops)
                by_variable.setdefault(access.variable, {})[(access.subscripts, path)] = access
                if element is not None:
                    where.setdefault(element, []).append((position, access))
        found: list[Promotion] = []
        shapes = {element: _Shape.of(element, lanes) for element in where}
        others = {
            name: [(None if access.indirect else shapes[access.element], access) for access in paths.values()]
            for name, paths in by_variable.items()
        }
        for element, accesses in where.items():
            each = self.has_own(element, lanes)
            if not _is_worth_it([access for _, access in accesses], lanes, each):
                continue
            own = shapes[element]
            rivals = (
                access
                for shape, access in others[element[0]]
                if shape is not own and (shape is None or not own.never_meets(shape, lanes))
            )
            if any(may_overlap(accesses[0][1], r, ranges, lanes) for r in rivals):
                continue
            # Something is sure to write the element: then it exists, and nobody else may write it at the same time.
            if any(a.write and a.certain for _, a in accesses) or _is_written(nodes, accesses, ranges):
                found.append(self.promotion(element, nodes, accesses, None, lanes))
                continue
            for position, own_accesses in _by_child(accesses).items():
                child = nodes[position]
                within = any(a.write and not a.conditional and a.doubtful == (child,) for a in own_accesses)
                if isinstance(child, For) and within and _is_worth_it(own_accesses, lanes, each):
                    here = [(position, access) for access in own_accesses]
                    found.append(self.promotion(element, nodes, here, child, lanes))
        return found

    def has_own(self, element: Element, lanes: Lanes | None) -> bool:
        """Whether each lane has such an element of its own."""
        return lanes is not None and self.lanes.get(element[0]) == lanes.width

    def promotion(
        self,
        element: Element,
        nodes: tuple[Node, ...],
        accesses: list[tuple[int, ElementAccess]],
        guard: For | None,
        lanes: Lanes | None,
    ) -> Promotion:
        """The promotion of an element from the first of these accesses to the last."""
        first, last = accesses[0][0], accesses[-1][0]
        overwritten = isinstance(nodes[first], Assign) and not any(a.read for p, a in accesses if p == first)
        moving = lanes is not None and (
            lanes.variable in subscript_variables(element[1]) or self.has_own(element, lanes)
        )
        register = Variable(
            name=fresh(f"{element[0]}_value", self.taken),
            dtype=self.types[element[0]],
            shape=(),
            scope="register",
            lanes=lanes.width if lanes is not None and moving else 1,
        )
        streaming = overwritten and getattr(nodes[first], "streaming", False)
        return Promotion(element, register, first, last, not overwritten, guard, streaming)


def _by_child(accesses: list[tuple[int, ElementAccess]]) -> dict[int, list[ElementAccess]]:
    """The accesses by the region's child that they are in."""
    found: dict[int, list[ElementAccess]] = {}
    for position, access in accesses:
        found.setdefault(position, []).append(access)
    return found


def _is_written(nodes: tuple[Node, ...], accesses: list[tuple[int, ElementAccess]], ranges: Ranges) -> bool:
    """Whether loops that go on where the one before ends write the element, and one of them surely has an iteration: unrolled copies and their rest."""
    start: For | None = None
    previous: tuple[int, For] | None = None
    for position in dict.fromkeys(p for p, a in accesses if a.write and not a.conditional and len(a.doubtful) == 1):
        loop = nodes[position]
        if not isinstance(loop, For) or not any(p == position and a.doubtful[:1] == (loop,) for p, a in accesses):
            continue
        follows = start is not None and previous is not None and previous[0] == position - 1
        if start is None or not follows or previous is None or previous[1].upper != loop.lower:
            start = loop
        elif ranges.is_positive(loop.upper - start.lower):
            return True
        previous = position, loop
    return False


def _is_worth_it(accesses: list[ElementAccess], lanes: Lanes | None, each: bool) -> bool:
    """Whether the accesses of one element, all of a region, may and should share a register. each: every lane has its own."""
    inner = {loop.variable for access in accesses for loop in access.loops}
    variables = subscript_variables(accesses[0].subscripts)
    if variables & inner or not any(a.read for a in accesses) or not any(a.write for a in accesses):
        return False
    if not inner and sum(a.read + a.write for a in accesses) <= (2 if accesses[0].read else 1):
        return False  # the load and the store that would stay are all there is
    for access in accesses:
        if any(loop.kind in ("parallel", "pipelined", "stage") or loop.mapped for loop in access.loops):
            return False
        in_lanes = any(loop.width > 1 for loop in access.loops)
        if access.write and (in_lanes or (lanes is not None and lanes.variable not in variables and not each)):
            return False  # one element for all lanes
    return True

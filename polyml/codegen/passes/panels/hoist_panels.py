"""What a function packs from constant operands leaves it: a function of its own fills all blocks once, and the kernel reads them from there.

Scratch memory that is filled from constant arguments alone, by the first nodes of its `Allocate`, holds the same in every call. It becomes an argument with a dimension for each
loop around it that decides what is in it (the blocks), and its filling, with those loops around, a function.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import (
    expressions,
    map_places,
    subscript_variables,
    uses,
    variables_of,
    walk_nodes,
    with_body,
)
from polyml.expressions import Expr, Read
from polyml.new_names import fresh
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import element_count, is_known

__all__ = ["Filling", "hoist_panels"]

LARGEST = 4
"""Times the constants' elements that all blocks may take together."""


@dataclass(frozen=True, slots=True)
class Filling:
    """`function` fills `packed`, its last argument, from the constants before it. blocks: dimensions of it that count blocks, its first ones."""

    function: Function
    packed: Variable
    blocks: int


def hoist_panels(function: Function, constants: Set[str]) -> tuple[Function, tuple[Filling, ...]]:
    """The function without what it packs from `constants`, names of arguments, and the functions that fill the packed arrays, which are its new first arguments.

    Arguments that it does not read any more are left out.

    Rewrite:
        f(x, w, z) { for (j0 = 0; j0 < 96; j0 += 48) { local p[64, 48]; for (k ..) p[k, j - j0] = w[k, j]; for (i ..) z[i, j] += x[i, k] * p[k, j - j0]; } }
        -> f_p(w, p) { for (j0 ..) for (k ..) p[j0//48, k, j - j0] = w[k, j]; }
           f(p, x, z) { for (j0 ..) for (i ..) z[i, j] += x[i, k] * p[j0//48, k, j - j0]; }
    """
    arguments = {v.name: v for v in function.arguments if v.name in constants and v.name not in function.written}
    if not arguments:
        return function, ()
    hoist = _Hoist(function, arguments, names_in(function), [])
    body = hoist.body(function.body, ())
    if not hoist.found:
        return function, ()
    read = {use.variable for node in walk_nodes(body) for use in uses(node)}
    body = _without_prefetches(body, arguments.keys() - read)
    read |= _prefetched(body)
    kept = tuple(v for v in function.arguments if v.name in read or v.name not in arguments)
    packed = tuple(filling.packed for filling in hoist.found)
    leads = tuple(lead for lead in function.leads if lead.array in {v.name for v in kept})
    return replace(function, body=body, arguments=(*packed, *kept), leads=leads), tuple(hoist.found)


def _prefetched(nodes: tuple[Node, ...]) -> frozenset[str]:
    """The arrays that something is fetched of."""
    return frozenset(node.place.variable for node in walk_nodes(nodes) if isinstance(node, Prefetch))


def _without_prefetches(nodes: tuple[Node, ...], arrays: Set[str]) -> tuple[Node, ...]:
    """Nothing is fetched of arrays that are not there any more."""
    left = (node for node in nodes if not isinstance(node, Prefetch) or node.place.variable not in arrays)
    return tuple(with_body(node, lambda body: _without_prefetches(body, arrays)) for node in left)


@dataclass(frozen=True, slots=True)
class _Hoist:
    function: Function
    constants: dict[str, Variable]
    taken: set[str]
    found: list[Filling]

    def body(self, nodes: tuple[Node, ...], around: tuple[For | None, ...]) -> tuple[Node, ...]:
        """around: the loops; None where anything else decides whether this runs."""
        made: list[Node] = []
        for node in nodes:
            match node:
                case For():
                    loop = node if node.kind in ("sequential", "parallel") else None
                    made.append(replace(node, body=self.body(node.body, (*around, loop))))
                case If():
                    then, otherwise = (self.body(part, (*around, None)) for part in (node.then, node.otherwise))
                    made.append(replace(node, then=then, otherwise=otherwise))
                case Allocate():
                    rest = self.hoisted(node, around)
                    body = self.body(node.body if rest is None else rest, around)
                    made += [replace(node, body=body)] if rest is None else body
                case Block():
                    made.append(Block(self.body(node.body, around)))
                case _:
                    made.append(node)
        return tuple(made)

    def hoisted(self, node: Allocate, around: tuple[For | None, ...]) -> tuple[Node, ...] | None:
        """What is left of the array's body when it is filled elsewhere; None where that cannot be."""
        variable = node.variable
        if variable.scope != "local" or variable.lanes != 1 or not is_known(variable.shape):
            return None
        where = self.filling(node)
        if where is None:
            return None
        filling = node.body[where]
        sources = {use.variable for part in walk_nodes(filling) for use in uses(part) if use.read}
        # What the loops around fetch meanwhile is no argument of the filling.
        filling = _without_prefetches(filling, _prefetched(filling) - sources - {variable.name})
        loops = self.blocks(filling, around)
        if loops is None:
            return None
        shape = (*(affine(count) for _, _, count in loops), *variable.shape)
        room = sum(element_count(self.constants[name].shape) for name in sources)
        if element_count(shape) > LARGEST * max(room, 1):
            return None
        name = fresh(f"{self.function.name}_{variable.name}", self.taken)
        packed = Variable(name=name, dtype=variable.dtype, shape=shape, scope="global", alignment=64)
        prefix = tuple((affine(loop.variable) - low) // loop.step for loop, low, _ in loops)
        inside = _moved(filling, variable.name, packed.name, prefix)
        for loop, _, _ in reversed(loops):
            inside = (replace(loop, kind="sequential", body=inside),)
        arguments = tuple(v for v in self.constants.values() if v.name in sources)
        function = Function(
            name=f"{name}_fill", arguments=(*arguments, packed), written=frozenset({name}), sizes=(), body=inside
        )
        self.found.append(Filling(function, packed, len(loops)))
        return _moved((*node.body[: where.start], *node.body[where.stop :]), variable.name, packed.name, prefix)

    def filling(self, node: Allocate) -> slice | None:
        """The nodes of the body which alone write the array, and read nothing but constants; those before them fetch at most."""
        writers = [k for k, part in enumerate(node.body) if self.writes(part, node.variable.name)]
        if not writers or len(writers) == len(node.body):
            return None
        parts = node.body[: max(writers) + 1]
        for part in walk_nodes(parts):
            if isinstance(part, Allocate):
                return None
            for use in uses(part):
                if use.write != (use.variable == node.variable.name) or use.read == use.write:
                    return None
                if use.read and use.variable not in self.constants:
                    return None
        return slice(min(writers), len(parts))

    def writes(self, node: Node, name: str) -> bool:
        return any(use.write and use.variable == name for part in walk_nodes((node,)) for use in uses(part))

    def blocks(self, filling: tuple[Node, ...], around: tuple[For | None, ...]) -> list[tuple[For, Affine, int]] | None:
        """The loops around that the filling depends on, each with its start and the number of its iterations; None where that is no number."""
        used = _free_variables(filling)
        found: list[tuple[For, Affine, int]] = []
        known: tuple[For, ...] = ()
        for loop in around:
            if loop is None:
                if used - {l.variable for l in known}:
                    return None
                continue
            if loop.variable in used:
                span = Ranges(known).highest(loop.upper - loop.lower)
                if not loop.lower.is_constant or span is None or not loop.upper.is_constant:
                    return None
                found.append((loop, loop.lower, max(1, -(-span // loop.step))))
            known = (*known, loop)
        outside = used - {loop.variable for loop, _, _ in found}
        return None if outside else found


def _free_variables(nodes: tuple[Node, ...]) -> frozenset[str]:
    """Loop variables, sizes and leads that the nodes read and do not define."""
    used: frozenset[str] = frozenset()
    defined: set[str] = set()
    for node in walk_nodes(nodes):
        for expression in expressions(node):
            used |= variables_of(expression)
        if isinstance(node, For):
            defined.add(node.variable)
            used |= node.lower.variables() | node.upper.variables()
        elif isinstance(node, Assign):
            used |= subscript_variables(node.target.subscripts)
    return used - defined


def _moved(nodes: tuple[Node, ...], old: str, new: str, prefix: tuple[Affine, ...]) -> tuple[Node, ...]:
    """The nodes with elements of one array taken from, and put into, another one, at more subscripts."""

    def place(target: Place) -> Place:
        return Place(new, (*prefix, *target.subscripts)) if target.variable == old else target

    def read(value: Read) -> Expr:
        return Read(new, (*prefix, *value.subscripts), value.dtype) if value.tensor == old else value

    return _with_fetches(map_places(nodes, place=place, read=read), place)


def _with_fetches(nodes: tuple[Node, ...], place: Callable[[Place], Place]) -> tuple[Node, ...]:
    made: list[Node] = []
    for node in nodes:
        match node:
            case Prefetch():
                made.append(replace(node, place=place(node.place)))
            case For() | Allocate():
                made.append(replace(node, body=_with_fetches(node.body, place)))
            case Block():
                made.append(Block(_with_fetches(node.body, place)))
            case If():
                then, otherwise = _with_fetches(node.then, place), _with_fetches(node.otherwise, place)
                made.append(replace(node, then=then, otherwise=otherwise))
            case _:
                made.append(node)
    return tuple(made)

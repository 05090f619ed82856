"""Rewriting and reading of Loops trees: what every pass is made of. Functions return the same object when nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never

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
    Scan,
    UpdateArgument,
    Variable,
)
from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, reads_of, substitute, walk
from polyml.records import dataclass, replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = [
    "Use",
    "expressions",
    "flatten",
    "have_no_bodies",
    "is_empty",
    "map_places",
    "names_read",
    "nodes_of",
    "rename_variables",
    "subscript_variables",
    "substitute_nodes",
    "targets_of",
    "uses",
    "variables_by_name",
    "variables_of",
    "walk_nodes",
    "with_body",
]


@dataclass(frozen=True, slots=True)
class Use:
    """One access of a node: which element, and whether it is written (a reduction's target is read and written)."""

    variable: str
    subscripts: tuple[Subscript, ...]
    read: bool
    write: bool


def flatten(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes with Blocks dissolved at this level."""
    flat: list[Node] = []
    for node in nodes:
        flat.extend(flatten(node.body) if isinstance(node, Block) else (node,))
    return tuple(flat)


_LEAVES = (Assign, UpdateArgument, Prefetch)


_WITH_BODIES = frozenset({For, If, Allocate, Block})


def have_no_bodies(nodes: Iterable[Node]) -> bool:
    """Whether a walk ends with these nodes: asked at once, not node by node."""
    return _WITH_BODIES.isdisjoint(map(type, nodes))


def is_leaf(node: Node) -> bool:
    """Whether it has no body: half of the time of a `match`, which asks for one class after the other."""
    return isinstance(node, _LEAVES)


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes, parents first, in order."""
    stack = [*nodes]
    stack.reverse()
    while stack:
        node = stack.pop()
        yield node
        # Half of the time of a `match`, which asks for one class after the other.
        if isinstance(node, _LEAVES):
            continue
        if isinstance(node, If):
            stack.extend(node.otherwise[::-1])
            stack.extend(node.then[::-1])
        else:
            stack.extend(node.body[::-1])


_LAST: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = [((), ())]
"""The body that was looked at last, and its nodes. Bodies are compared by identity: most passes look at all nodes, and leave the body as it is."""


def nodes_of(function: Function) -> tuple[Node, ...]:
    """All nodes of the function, parents first, in order."""
    body, nodes = _LAST[0]
    if body is not function.body:
        body, nodes = function.body, tuple(walk_nodes(function.body))
        _LAST[0] = body, nodes
    return nodes


def variables_by_name(function: Function) -> dict[str, Variable]:
    """The arguments, and what is allocated anywhere in the function."""
    allocated = [node.variable for node in nodes_of(function) if isinstance(node, Allocate)]
    return {variable.name: variable for variable in (*function.arguments, *allocated)}


def with_body(node: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """The node with `change` applied to each of its bodies (none for an assignment)."""
    if isinstance(node, _LEAVES):  # as most nodes are
        return node
    if isinstance(node, If):
        then, otherwise = change(node.then), change(node.otherwise)
        same = then is node.then and otherwise is node.otherwise
        return node if same else replace(node, then=then, otherwise=otherwise)
    body = change(node.body)
    return node if body is node.body else replace(node, body=body)


def is_empty(node: Node) -> bool:
    """Whether nothing is left in a loop, a scope, or both branches of a condition."""
    match node:
        case Assign() | UpdateArgument() | Prefetch():
            return False
        case For() | Allocate() | Block():
            return not node.body
        case If():
            return not node.then and not node.otherwise
        case _:
            assert_never(node)


def expressions(node: Node) -> list[Expr]:
    """The expressions that a node itself evaluates, gathered subscripts of its targets included; not those of its body."""
    match node:
        case Assign():
            return [node.value, *(node.scan.expressions if node.scan else ()), *_indirect(node.target)]
        case UpdateArgument():
            return [node.candidate, node.candidate_index, *_indirect(node.best), *_indirect(node.argument)]
        case If():
            return [node.condition]
        case Prefetch():
            return _indirect(node.place)
        case For():
            return [Read(flag, (), boolean) for flag in node.if_numbers]
        case Allocate() | Block():
            return []
        case _:
            assert_never(node)


def uses(node: Node) -> list[Use]:
    """The accesses of a node itself in order of execution, reads before writes; not those of its body."""
    found = [Use(read.tensor, read.subscripts, True, False) for expr in expressions(node) for read in reads_of(expr)]
    match node:
        case Assign(scan=Scan() as scan):
            found += [Use(carry, (), True, True) for carry in scan.carries]
            found.append(Use(node.target.variable, node.target.subscripts, False, True))
        case Assign():
            found.append(Use(node.target.variable, node.target.subscripts, node.reduction is not None, True))
        case UpdateArgument():
            found.append(Use(node.best.variable, node.best.subscripts, True, True))
            found.append(Use(node.argument.variable, node.argument.subscripts, True, True))
        case _:
            pass
    return found


def names_read(node: Node) -> set[str]:
    """The variables of which a node itself reads elements, but for the targets that its reductions read and write."""
    names = {read.tensor for expr in expressions(node) for read in reads_of(expr)}
    if isinstance(node, Assign) and node.scan is not None:
        names.update(node.scan.carries)
    return names


def targets_of(node: Node) -> tuple[Place, ...]:
    """The elements that a node itself writes."""
    match node:
        case Assign():
            return (node.target,)
        case UpdateArgument():
            return node.best, node.argument
        case _:
            return ()


def subscript_variables(subscripts: Iterable[Subscript]) -> frozenset[str]:
    """The loop variables and sizes that subscripts depend on."""
    found: frozenset[str] = frozenset()
    for subscript in subscripts:
        found |= subscript.variables() if isinstance(subscript, Affine) else variables_of(subscript)
    return found


def variables_of(expr: Expr) -> frozenset[str]:
    """The loop variables and sizes that an expression's value depends on, subscripts included."""
    found: frozenset[str] = frozenset()
    for node in walk(expr):
        match node:
            case IndexValue():
                found |= node.affine.variables()
            case Read():
                found |= subscript_variables(s for s in node.subscripts if isinstance(s, Affine))
            case Const() | Apply():
                pass
            case _:
                assert_never(node)
    return found


def substitute_nodes(nodes: tuple[Node, ...], values: Mapping[str, Affine | int]) -> tuple[Node, ...]:
    """The nodes with loop variables replaced in all bounds and expressions; a For whose variable is replaced by a name is renamed."""
    new = tuple(_substitute_node(node, values) for node in nodes)
    return renewed(nodes, new)


def rename_variables(nodes: tuple[Node, ...], names: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with storage variables renamed, their Allocate included."""
    if not names:
        return nodes

    def place(old: Place) -> Place:
        return Place(names.get(old.variable, old.variable), old.subscripts)

    def read(old: Read) -> Expr:
        return Read(names[old.tensor], old.subscripts, old.dtype) if old.tensor in names else old

    def rename(body: tuple[Node, ...]) -> tuple[Node, ...]:
        changed = map_places(body, place=place, read=read)
        return tuple(visit(node) for node in changed)

    def visit(node: Node) -> Node:
        if isinstance(node, Allocate) and node.variable.name in names:
            node = replace(node, variable=replace(node.variable, name=names[node.variable.name]))
        if isinstance(node, Prefetch) and node.place.variable in names:
            node = replace(node, place=place(node.place))
        return with_body(node, lambda body: tuple(visit(child) for child in body))

    return rename(nodes)


def map_places(
    nodes: tuple[Node, ...], *, place: Callable[[Place], Place], read: Callable[[Read], Expr]
) -> tuple[Node, ...]:
    """The nodes, bodies included, with every written place and every read replaced."""

    def visit(node: Node) -> Node:
        match node:
            case Assign():
                target, value = place(_map_place(node.target, read)), map_expr(node.value, read)
                scan = node.scan
                if scan is not None:
                    scan = scan.changed(lambda name: place(Place(name, ())).variable, lambda e: map_expr(e, read))
                same = target == node.target and value is node.value and scan == node.scan
                return node if same else replace(node, target=target, value=value, scan=scan)
            case UpdateArgument():
                made = replace(
                    node,
                    best=place(_map_place(node.best, read)),
                    argument=place(_map_place(node.argument, read)),
                    candidate=map_expr(node.candidate, read),
                    candidate_index=map_expr(node.candidate_index, read),
                )
                return node if made == node else made
            case Prefetch():
                return node
            case If():
                condition = map_expr(node.condition, read)
                node = node if condition is node.condition else replace(node, condition=condition)
                return with_body(node, body)
            case For() | Allocate() | Block():
                return with_body(node, body)
            case _:
                assert_never(node)

    def body(children: tuple[Node, ...]) -> tuple[Node, ...]:
        new = tuple(visit(child) for child in children)
        return renewed(children, new)

    return body(nodes)


def map_expr(expr: Expr, change: Callable[[Read], Expr]) -> Expr:
    """`map_reads`, but the same object when `change` returns equal reads."""
    match expr:
        case Const() | IndexValue():
            return expr
        case Read():
            return change(expr.at(s if isinstance(s, Affine) else map_expr(s, change) for s in expr.subscripts))
        case Apply():
            return expr.with_args(map_expr(arg, change) for arg in expr.args)
        case _:
            assert_never(expr)


def _indirect(place: Place) -> list[Expr]:
    return [subscript for subscript in place.subscripts if not isinstance(subscript, Affine)]


def _map_place(place: Place, read: Callable[[Read], Expr]) -> Place:
    return place.at(s if isinstance(s, Affine) else map_expr(s, read) for s in place.subscripts)


def _substitute_place(place: Place, values: Mapping[str, Affine | int]) -> Place:
    subscripts = tuple(
        s.substitute(values) if isinstance(s, Affine) else substitute(s, values) for s in place.subscripts
    )
    return place if subscripts == place.subscripts else Place(place.variable, subscripts)


def _substitute_node(node: Node, values: Mapping[str, Affine | int]) -> Node:
    match node:
        case Assign():
            target, value, scan = _substitute_place(node.target, values), substitute(node.value, values), node.scan
            if scan is not None:
                scan = scan.changed(lambda name: name, lambda expr: substitute(expr, values))
            same = target is node.target and value is node.value and scan == node.scan
            return node if same else replace(node, target=target, value=value, scan=scan)
        case UpdateArgument():
            made = replace(
                node,
                best=_substitute_place(node.best, values),
                argument=_substitute_place(node.argument, values),
                candidate=substitute(node.candidate, values),
                candidate_index=substitute(node.candidate_index, values),
            )
            return node if made == node else made
        case Prefetch():
            where = _substitute_place(node.place, values)
            return node if where is node.place else replace(node, place=where)
        case For():
            lower, upper = node.lower.substitute(values), node.upper.substitute(values)
            renamed = values.get(node.variable)
            variable = (renamed.name if isinstance(renamed, Affine) else None) or node.variable
            body = substitute_nodes(node.body, values)
            if body is node.body and lower == node.lower and upper == node.upper and variable == node.variable:
                return node
            return replace(node, variable=variable, lower=lower, upper=upper, body=body)
        case If():
            condition = substitute(node.condition, values)
            then, otherwise = substitute_nodes(node.then, values), substitute_nodes(node.otherwise, values)
            if condition is node.condition and then is node.then and otherwise is node.otherwise:
                return node
            return If(condition=condition, then=then, otherwise=otherwise)
        case Allocate() | Block():
            return with_body(node, lambda body: substitute_nodes(body, values))
        case _:
            assert_never(node)

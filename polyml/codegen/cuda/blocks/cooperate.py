"""What threads of a block do together: accumulators of their own for reductions that a thread loop carries, and where scratch memory is shared.

    for thread k: m = max(m, x[k])     becomes     own = -inf; for thread k: own = max(own, x[k]);  m = max(m, own) across

As the vectorizer does for lanes (passes/vectors/privatize.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from typing import TypeGuard

from polyml.codegen.allocations import as_register
from polyml.codegen.cuda.proofs.touches import has_phases
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
from polyml.codegen.rewrite import expressions, subscript_variables, uses, walk_nodes, with_body
from polyml.dtypes import DType, i64
from polyml.expressions import Const, Expr, Read, Subscript, reads_of
from polyml.new_names import fresh
from polyml.ops import REDUCTIONS
from polyml.sets.affine import Affine, affine, operands

__all__ = ["cooperate", "settle_scopes", "written_by"]


def cooperate(function: Function) -> Function:
    """The kernel with private accumulators."""
    if not has_phases(Block(function.body)):
        return function
    types = {variable.name: variable.dtype for variable in function.arguments}
    types |= {
        n.variable.name: n.variable.dtype
        for n in walk_nodes(function.body)
        if isinstance(n, Allocate) and n.variable.scope != "private"
    }
    taken = names_in(function)
    worker = _Cooperation(types, taken)
    return replace(function, body=worker.uniform(function.body))


class _Cooperation:
    def __init__(self, types: dict[str, DType], taken: set[str]) -> None:
        self.types = types
        self.taken = taken
        self.settled: set[tuple[str, tuple[Subscript, ...]]] = set()
        self.apart: frozenset[str] = frozenset()
        self.multiples: dict[str, int] = {}  # of the loops around: what all values are multiples of

    def uniform(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Nodes that all threads of a block reach."""
        return tuple(self.node(node) for node in nodes)

    def node(self, node: Node) -> Node:
        match node:
            case For(kind="thread"):
                return self.phase(node)
            case Allocate() if has_phases(node):
                return with_body(_scalar(node), self.uniform)
            case For() | If() | Allocate() | Block():
                if isinstance(node, For) and node.lower.is_constant:
                    self.multiples[node.variable] = gcd(node.step, node.lower.constant)
                return with_body(node, self.uniform) if has_phases(node) else node
            case Assign() | UpdateArgument() | Prefetch():
                return node

    def phase(self, loop: For) -> Node:
        """A thread loop with an accumulator per reduction into an element that its threads have in common."""
        inner = {n.variable for n in walk_nodes((loop,)) if isinstance(n, For)}
        # Scratch memory inside the loop is each iteration's own.
        inner |= {n.variable.name for n in walk_nodes((loop,)) if isinstance(n, Allocate)}
        self.apart = _apart(loop, self.multiples)
        # An element that the loop also reads or sets is not carried from one iteration to another: its updates belong to one thread.
        self.settled = {(u.variable, u.subscripts) for n in walk_nodes((loop,)) for u in uses(n) if u.read != u.write}
        found: dict[tuple[str, tuple[object, ...]], _Private] = {}
        body = tuple(self.private(node, loop.variable, inner, found) for node in loop.body)
        if not found:
            return loop
        made: tuple[Node, ...] = (
            *(fill for private in found.values() for fill in private.fills),
            replace(loop, body=body),
            *(private.gather for private in found.values()),
        )
        for variable in (v for private in found.values() for v in private.variables):
            made = (Allocate(variable=variable, body=made),)
        return made[0]

    def private(
        self, node: Node, thread: str, inner: set[str], found: dict[tuple[str, tuple[object, ...]], _Private]
    ) -> Node:
        match node:
            case Assign(reduction=str()) if self.common(node.target, thread, inner):
                own = self.accumulator(node, found)
                return replace(node, target=Place(own.variables[0].name, ()))
            case UpdateArgument() if self.common(node.best, thread, inner):
                own = self.accumulator(node, found)
                return replace(node, best=Place(own.variables[0].name, ()), argument=Place(own.variables[1].name, ()))
            case _:
                return with_body(node, lambda body: tuple(self.private(child, thread, inner, found) for child in body))

    def common(self, place: Place, thread: str, inner: set[str]) -> bool:
        """Whether all threads of the loop update one element."""
        names = subscript_variables(place.subscripts)
        if (
            place.variable not in self.types
            or place.variable in inner
            or (place.variable, place.subscripts) in self.settled
        ):
            return False
        if not all(isinstance(s, Affine) for s in place.subscripts) or thread in names:
            return False
        if any(isinstance(s, Affine) and s.name in self.apart for s in place.subscripts):
            return False
        assert not names & inner, f"internal: threads share {place}, which moves inside each of them"
        return True

    def accumulator(
        self, node: Assign | UpdateArgument, found: dict[tuple[str, tuple[object, ...]], _Private]
    ) -> _Private:
        target = node.target if isinstance(node, Assign) else node.best
        key = (target.variable, tuple(target.subscripts))
        if key not in found:
            dtype = self.types[target.variable]
            name = fresh(f"own_{target.variable}", self.taken)
            own = Variable(name=name, dtype=dtype, shape=(), scope="register")
            if isinstance(node, Assign):
                found[key] = _plain(own, target, node.reduction or "", atomic=node.atomic)
            else:
                name = fresh(f"own_{node.argument.variable}", self.taken)
                found[key] = _pair(own, Variable(name=name, dtype=i64, shape=(), scope="register"), node)
        return found[key]


def _apart(loop: For, multiples: Mapping[str, int]) -> frozenset[str]:
    """Inner loops that begin at a thread's number and take steps of all threads: no value of theirs belongs to two threads.

    Where a loop begins at the largest of several values, each is the thread's number and a multiple of the step.
    """
    spans = [o - loop.lower for o in operands(loop.upper, "min")]
    span = min((o.constant for o in spans if o.is_constant), default=None)

    def begins(inner: For) -> bool:
        rests = [o - affine(loop.variable) for o in operands(inner.lower, "max")]
        fixed = len(rests) == 1 and loop.variable not in rests[0].variables()
        return fixed or all(_is_multiple(rest, inner.step, multiples) for rest in rests)

    inner = (n for n in walk_nodes(loop.body) if isinstance(n, For) and begins(n))
    return frozenset(n.variable for n in inner if span is not None and span <= n.step and loop.step == 1)


def _is_multiple(value: Affine, step: int, multiples: Mapping[str, int]) -> bool:
    """Whether all values are multiples of the step."""
    known = (c * (multiples.get(atom, 1) if isinstance(atom, str) else 1) for atom, c in value.terms)
    return value.constant % step == 0 and all(c % step == 0 for c in known)


def _scalar(node: Allocate) -> Allocate:
    """A single element that stands around thread loops as a 0-d variable; `settle_scopes` says whether it is shared."""
    if node.variable.scope in ("private", "register") or any(extent != affine(1) for extent in node.variable.shape):
        return node
    return as_register(node)


class _Private:
    """Accumulators of one element: registers, what they start from, and how the block combines them."""

    def __init__(self, variables: tuple[Variable, ...], fills: tuple[Node, ...], gather: Node) -> None:
        self.variables, self.fills, self.gather = variables, fills, gather


def _plain(own: Variable, target: Place, reduction: str, *, atomic: bool) -> _Private:
    identity = REDUCTIONS[reduction].identity(own.dtype)
    assert identity is not None, "internal: argmax and argmin are UpdateArgument"
    value: Expr = Const(identity, own.dtype)
    fill = Assign(target=Place(own.name, ()), value=value)
    gather = Assign(target=target, value=Read(own.name, (), own.dtype), reduction=reduction, across=True, atomic=atomic)
    return _Private((own,), (fill,), gather)


def _pair(own: Variable, argument: Variable, node: UpdateArgument) -> _Private:
    fills = (
        Assign(target=Place(own.name, ()), value=Const(0, own.dtype)),
        Assign(target=Place(argument.name, ()), value=Const(-1, i64)),
    )
    gather = replace(
        node,
        candidate=Read(own.name, (), own.dtype),
        candidate_index=Read(argument.name, (), i64),
        across=True,
    )
    return _Private((own, argument), fills, gather)


# -- scopes -----------------------------------------------------------------------------------------------------------------------


def settle_scopes(function: Function) -> Function:
    """The kernel with its scratch variables in the scope that they belong to.

    What stands around thread loops is shared by the block; but a register that no thread loop writes is replicated, when whatever
    writes it outside of them writes nothing but replicated registers: then all threads compute it, each for itself, without a barrier.
    """
    if not has_phases(Block(function.body)):
        return function
    kept = {n.variable.name for n in walk_nodes(function.body) if _is_register(n)}
    inside = (loop.body for loop in walk_nodes(function.body) if isinstance(loop, For) and loop.kind == "thread")
    kept -= {use.variable for body in inside for node in walk_nodes(body) for use in uses(node) if use.write}
    # The threads' own accumulators are combined by nodes that all threads reach.
    for node in walk_nodes(function.body):
        if isinstance(node, Assign | UpdateArgument) and node.across:
            kept |= {read.tensor for expr in expressions(node) for read in reads_of(expr)}
    groups = [written_by(node) for node in _thread_free(function.body)]
    while True:
        lost = {name for group in groups if not group <= kept for name in group & kept}
        if not lost:
            break
        kept -= lost
    return replace(function, body=tuple(_scoped(node, kept) for node in function.body))


def written_by(node: Node) -> frozenset[str]:
    """The variables that a node writes, those that it allocates itself left out."""
    own = {inner.variable.name for inner in walk_nodes((node,)) if isinstance(inner, Allocate)}
    return frozenset(use.variable for inner in walk_nodes((node,)) for use in uses(inner) if use.write) - own


def _thread_free(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """The largest nodes without thread loops outside of all thread loops."""
    for node in nodes:
        if not has_phases(node):
            yield node
        elif isinstance(node, If):
            yield from _thread_free((*node.then, *node.otherwise))
        elif isinstance(node, Allocate | Block) or (isinstance(node, For) and node.kind != "thread"):
            yield from _thread_free(node.body)


def _scoped(node: Node, kept: set[str]) -> Node:
    if not has_phases(node) or (isinstance(node, For) and node.kind == "thread"):
        return node
    node = with_body(node, lambda body: tuple(_scoped(child, kept) for child in body))
    if isinstance(node, Allocate) and node.variable.scope != "private" and node.variable.name not in kept:
        node = replace(node, variable=replace(node.variable, scope="shared"))
    return node


def _is_register(node: Node) -> TypeGuard[Allocate]:
    return isinstance(node, Allocate) and node.variable.scope == "register"

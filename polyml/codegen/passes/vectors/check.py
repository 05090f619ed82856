"""Whether a loop's lanes can run side by side in the emitters' vector code, and what its width follows from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Place, Prefetch, UpdateArgument
from polyml.codegen.passes.vectors.privatize import Partial
from polyml.codegen.rewrite import subscript_variables, walk_nodes
from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, walk
from polyml.sets.affine import Affine

__all__ = ["NotVectorizable", "check_lanes", "lane_dtypes"]


class NotVectorizable(Exception):
    """The loop cannot have lanes; the text says why."""


def check_lanes(loop: For, partials: tuple[Partial, ...]) -> None:
    """Refuses a loop whose body has no vector form. `partials` are the reductions that get accumulators.

    Raises:
        NotVectorizable
    """
    _check(loop.body, _Lanes(loop.variable, _allocated(loop), frozenset(p.target for p in partials)), False)


def lane_dtypes(loop: For) -> Iterator[DType]:
    """The types that decide the width: of elements accessed, and of what is computed from them. Index arithmetic does not count, nor how a number is computed that all lanes share."""
    lanes = _Lanes(loop.variable, _allocated(loop), frozenset())
    winners = {node.argument for node in walk_nodes(loop.body) if isinstance(node, UpdateArgument)}
    for node in walk_nodes(loop.body):
        match node:
            case Assign(value=Apply(op="cast", args=(Read(tensor, (), dtype),))) if Place(tensor, ()) in winners:
                yield dtype  # a winner's index becomes longer once, when it is known
            case Assign():
                yield from _dtypes(node.value, lanes)
            case UpdateArgument():
                yield from _dtypes(node.candidate, lanes)
            case If():
                yield from _dtypes(node.condition, lanes)
            case For() | Allocate() | Block() | Prefetch():
                pass
            case _:
                assert_never(node)


def _allocated(loop: For) -> frozenset[str]:
    return frozenset(node.variable.name for node in walk_nodes(loop.body) if isinstance(node, Allocate))


def _dtypes(expr: Expr, lanes: _Lanes) -> Iterator[DType]:
    yield _part(expr.dtype)
    waiting = [expr]
    while waiting:
        match node := waiting.pop():
            case Read():
                yield _part(node.dtype)
                waiting += [s for s in node.subscripts if not isinstance(s, Affine) and lanes.differs(s)]
            case Apply():
                if node.dtype.is_float:
                    yield _part(node.dtype)
                waiting += node.args if lanes.differs(node) else ()
            case _:
                pass


def _part(dtype: DType) -> DType:
    return dtype.part if dtype.is_complex else dtype


class _Lanes:
    """What differs between lanes."""

    def __init__(self, variable: str, private: frozenset[str], partials: frozenset[Place]) -> None:
        self.variable, self.private, self.partials = variable, private, partials
        self._known: dict[int, tuple[Expr, bool]] = {}

    def differs(self, expr: Expr) -> bool:
        """Whether the value may differ between lanes. It is asked of every part of an expression, and found for all at once."""
        if id(expr) not in self._known:
            for node in reversed(list(walk(expr))):  # what is below it first
                self._known[id(node)] = node, self._differs(node)
        return self._known[id(expr)][1]

    def _differs(self, node: Expr) -> bool:
        match node:
            case Apply():
                return any(self._known[id(arg)][1] for arg in node.args)
            case Read():
                if node.tensor in self.private:
                    return True
                return any(
                    self.variable in s.variables() if isinstance(s, Affine) else self._known[id(s)][1]
                    for s in node.subscripts
                )
            case IndexValue():
                return self.variable in node.affine.variables()
            case Const():
                return False
            case _:
                assert_never(node)

    def moves(self, place: Place) -> bool:
        """Whether lanes write different elements."""
        indirect = any(not isinstance(s, Affine) and self.differs(s) for s in place.subscripts)
        return place.variable in self.private or indirect or self.variable in subscript_variables(place.subscripts)

    def apart(self, place: Place) -> bool:
        """Whether lanes certainly write different elements."""
        strides = (s.stride(self.variable) for s in place.subscripts if isinstance(s, Affine))
        return place.variable in self.private or any(strides)


def _check(nodes: tuple[Node, ...], lanes: _Lanes, conditional: bool) -> None:
    for node in nodes:
        match node:
            case Assign():
                _check_assign(node, lanes, conditional)
            case UpdateArgument():
                moving = {lanes.moves(node.best), lanes.moves(node.argument)}
                if node.best in lanes.partials:
                    continue
                if moving != {True} or not (lanes.apart(node.best) and lanes.apart(node.argument)):
                    raise NotVectorizable(f"lanes share the element {node.best}")
            case For():
                if lanes.variable in node.lower.variables() | node.upper.variables():
                    raise NotVectorizable(f"the bounds of loop {node.variable} differ between lanes")
                if node.kind in ("parallel", "pipelined"):
                    raise NotVectorizable(f"loop {node.variable} inside is parallel")
                _check(node.body, lanes, conditional)
            case If():
                inside = conditional or lanes.differs(node.condition)
                _check((*node.then, *node.otherwise), lanes, inside)
            case Allocate() | Block():
                _check(node.body, lanes, conditional)
            case Prefetch():
                pass
            case _:
                assert_never(node)


def _check_assign(node: Assign, lanes: _Lanes, conditional: bool) -> None:
    if node.across:
        raise NotVectorizable("it combines lanes")
    if node.target in lanes.partials:
        return
    if not lanes.moves(node.target):
        if node.reduction is not None or conditional or lanes.differs(node.value):
            raise NotVectorizable(f"lanes share the element {node.target}")
        return
    indirect = any(not isinstance(s, Affine) for s in node.target.subscripts)
    if (indirect or node.reduction is not None) and not lanes.apart(node.target):
        raise NotVectorizable(f"lanes may write one element of {node.target.variable}")

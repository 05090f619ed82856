"""What the body of a parallel loop uses from outside: arrays and registers by pointer, sizes and loop variables by value."""

from __future__ import annotations

from typing import assert_never

from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Place, Prefetch, UpdateArgument
from polyml.expressions import Expr, IndexValue, Read, walk
from polyml.sets.affine import Affine

__all__ = ["captured"]


def captured(state: State, node: For) -> tuple[list[str], list[str]]:
    """Names of the storage and of the integers that the loop's body refers to, of those that exist around it; sorted."""
    arrays: set[str] = set()
    integers: set[str] = set()
    _collect(node, arrays, integers)
    for name in arrays & state.slots.keys():
        for extent in state.slots[name].variable.shape:
            integers |= extent.variables()
    return sorted(arrays & state.slots.keys()), sorted(integers & state.nest.variables.keys())


def _collect(node: Node, arrays: set[str], integers: set[str]) -> None:
    match node:
        case Assign():
            _place(node.target, arrays, integers)
            _expr(node.value, arrays, integers)
            if node.scan is not None:
                arrays.update(node.scan.carries)
                for expr in node.scan.expressions:
                    _expr(expr, arrays, integers)
        case UpdateArgument():
            _place(node.best, arrays, integers)
            _place(node.argument, arrays, integers)
            _expr(node.candidate, arrays, integers)
            _expr(node.candidate_index, arrays, integers)
        case Prefetch():
            _place(node.place, arrays, integers)
        case For():
            arrays.update(node.if_numbers)
            integers |= node.lower.variables() | node.upper.variables()
        case If():
            _expr(node.condition, arrays, integers)
            for child in node.otherwise:
                _collect(child, arrays, integers)
            for child in node.then:
                _collect(child, arrays, integers)
        case Allocate():
            for extent in node.variable.shape:
                integers |= extent.variables()
        case Block():
            pass
        case _:
            assert_never(node)
    if isinstance(node, For | Allocate | Block):
        for child in node.body:
            _collect(child, arrays, integers)


def _place(place: Place, arrays: set[str], integers: set[str]) -> None:
    arrays.add(place.variable)
    for subscript in place.subscripts:
        if isinstance(subscript, Affine):
            integers |= subscript.variables()
        else:
            _expr(subscript, arrays, integers)


def _expr(expr: Expr, arrays: set[str], integers: set[str]) -> None:
    for node in walk(expr):
        match node:
            case IndexValue():
                integers |= node.affine.variables()
            case Read():
                arrays.add(node.tensor)
                for subscript in node.subscripts:
                    if isinstance(subscript, Affine):
                        integers |= subscript.variables()
            case _:
                pass

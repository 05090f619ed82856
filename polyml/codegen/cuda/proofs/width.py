"""Whether a kernel's index values need 64 bits: proved not to where all of them, and all their parts, stay small."""

from __future__ import annotations

from polyml.codegen.cuda.program import Kernel
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch, UpdateArgument, Variable
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions, uses
from polyml.expressions import IndexValue, walk
from polyml.sets.affine import Affine, Extremum, FloorDiv

__all__ = ["needs_wide_indices"]

_LIMIT = 2**30


def needs_wide_indices(kernel: Kernel) -> bool:
    """False when no index value of the kernel, nor a partial sum of one, can leave 31 bits."""
    function = kernel.function
    if function.sizes:
        return True
    variables = {v.name: v for v in function.arguments}
    return not all(_small(node, variables, Ranges()) for node in function.body)


def _small(node: Node, variables: dict[str, Variable], ranges: Ranges) -> bool:
    for use in uses(node):
        if not _small_access(variables.get(use.variable), use.subscripts, ranges):
            return False
    for expr in (inner for outer in expressions(node) for inner in walk(outer)):
        if isinstance(expr, IndexValue) and not _bounded(expr.affine, ranges):
            return False
    match node:
        case For():
            if not (_bounded(node.lower, ranges) and _bounded(node.upper, ranges)):
                return False
            inside = ranges.enter(node)
            return all(_small(child, variables, inside) for child in node.body)
        case If():
            return all(_small(child, variables, ranges) for child in (*node.then, *node.otherwise))
        case Allocate():
            known = {**variables, node.variable.name: node.variable}
            return all(_small(child, known, ranges) for child in node.body)
        case Block():
            return all(_small(child, variables, ranges) for child in node.body)
        case Assign() | UpdateArgument() | Prefetch():
            return True


def _small_access(variable: Variable | None, subscripts: tuple[object, ...], ranges: Ranges) -> bool:
    if variable is None:
        return True
    total = Affine()
    for subscript, stride in zip(subscripts, variable.memory_strides, strict=False):
        if stride is None:
            return False
        if isinstance(subscript, Affine):
            total = total + subscript * stride
    return _bounded(total, ranges)


def _bounded(value: Affine, ranges: Ranges) -> bool:
    """Whether the sum of the sizes of its terms stays below the limit."""
    total = abs(value.constant)
    for atom, coefficient in value.terms:
        low, high = ranges.lowest(Affine(((atom, 1),))), ranges.highest(Affine(((atom, 1),)))
        if low is None or high is None:
            return False
        total += abs(coefficient) * max(abs(low), abs(high))
        match atom:
            case FloorDiv():
                if not _bounded(atom.numerator, ranges):
                    return False
            case Extremum():
                if not all(_bounded(operand, ranges) for operand in atom.operands):
                    return False
            case str():
                pass
    return total < _LIMIT

"""The types of a call's arguments, and the sizes that they bind."""

from __future__ import annotations

from dataclasses import dataclass

from polyml.dtypes import DType
from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.syntax import (
    Assign,
    Binary,
    CallProgram,
    Compare,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    LoopRef,
    Number,
    Pad,
    Parameter,
    Program,
    Reducer,
    Return,
    SizeRef,
    Statement,
    Subscript,
    Unary,
)
from polyml.errors import DTypeError, NotAffineError, ShapeError
from polyml.sets.affine import Affine, Extent, affine

__all__ = ["ArgumentType", "Signature", "bind_sizes", "check_argument", "symbolic_ints"]


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """Of a tensor argument, or of a scalar one (`shape` is empty). Where sizes stay symbolic, extents are expressions in them."""

    dtype: DType
    shape: tuple[Extent, ...] = ()

    def __str__(self) -> str:
        return f'{self.dtype}["{" ".join(map(str, self.shape))}"]' if self.shape else str(self.dtype)


@dataclass(frozen=True, slots=True)
class Signature:
    """What one compilation is for: per parameter, in call order, an ArgumentType; for an `int` parameter its value, or None where it
    stays symbolic."""

    arguments: tuple[ArgumentType | int | None, ...]


def bind_sizes(program: Program, signature: Signature) -> dict[str, Affine]:
    """The value of every size of the program: a number, or for an `int` parameter that stays symbolic the variable of its name.

    Upper-case sizes are bound by an `int` parameter of that name, else by the first argument with a bare entry, and all other entries are checked.

    Raises:
        ShapeError: a rank or an entry disagrees, or a size is bound by nothing.
        DTypeError: an argument has another element type than its parameter.
    """
    if len(signature.arguments) != len(program.parameters):
        raise ShapeError(
            f"{program.name} takes {len(program.parameters)} arguments, and {len(signature.arguments)} were given"
        )
    sizes: dict[str, Affine] = {}
    for parameter, argument in zip(program.parameters, signature.arguments, strict=True):
        if parameter.is_size:
            assert not isinstance(argument, ArgumentType), f"internal: {parameter.name} is an int parameter"
            sizes[parameter.name] = affine(parameter.name if argument is None else argument)
    bound_by: dict[str, str] = {name: f"the int parameter {name}" for name in sizes}
    pairs = [
        (p, a) for p, a in zip(program.parameters, signature.arguments, strict=True) if isinstance(a, ArgumentType)
    ]
    for parameter, given in pairs:
        check_argument(parameter, given)
        for position, entry in enumerate(parameter.shape or ()):
            if isinstance(entry, SizeRef) and entry.name not in sizes:
                sizes[entry.name] = affine(given.shape[position])
                bound_by[entry.name] = f"dimension {position} of {parameter.name}"
    for parameter, given in pairs:
        for position, entry in enumerate(parameter.shape or ()):
            _check_entry(parameter, position, entry, given.shape[position], sizes, bound_by)
    return sizes


def check_argument(parameter: Parameter, given: ArgumentType) -> None:
    """Refuses an element type or a rank other than the parameter's.

    Raises:
        DTypeError, ShapeError: naming the parameter and both.
    """
    assert parameter.dtype is not None, f"internal: {parameter.name} is an int parameter"
    if given.dtype != parameter.dtype:
        raise DTypeError(
            f"argument {parameter.name} has dtype {given.dtype}, and the program declares {parameter.dtype}",
            span=parameter.span,
            hint=f"convert it, or declare {parameter.name}: {given.dtype}",
        )
    rank = len(parameter.shape or ())
    if len(given.shape) != rank:
        raise ShapeError(
            f"argument {parameter.name} has {len(given.shape)} dimensions {given.shape}, and the program declares {rank}",
            span=parameter.span,
        )


def _check_entry(
    parameter: Parameter,
    position: int,
    entry: Expression,
    extent: Extent,
    sizes: dict[str, Affine],
    bound_by: dict[str, str],
) -> None:
    used = {n.name for n in nodes(entry) if isinstance(n, SizeRef)}
    missing = sorted(used - sizes.keys())
    if missing:
        raise ShapeError(
            f"size {missing[0]} is bound by nothing: no parameter has it as a bare entry of its shape",
            span=entry.span,
            hint=f"add an `{missing[0]}: int` parameter, or give a tensor the entry {missing[0]} alone",
        )
    expected = to_affine(entry, Names(sizes, {}, {}))
    if expected is None:
        raise NotAffineError(f"the shape of {parameter.name} must be affine in sizes", span=entry.span)
    if expected == affine(extent):
        return
    if not expected.is_constant:
        message = f"the shape of {parameter.name} depends on {expected}, which is not one number here"
        raise ShapeError(message, span=entry.span)
    origin = "; ".join(f"{name} = {sizes[name]} by {bound_by[name]}" for name in sorted(used))
    raise ShapeError(
        f"dimension {position} of argument {parameter.name} is {extent}, and its entry says {expected.constant}"
        + (f" ({origin})" if origin else ""),
        span=entry.span,
    )


def symbolic_ints(program: Program) -> frozenset[str]:
    """The `int` parameters that stay symbolic, so that a new value needs no new compilation: those that only count iterations, appear as
    numbers, or bound conditions.

    Specialized are those that divide or multiply an index, and those that a shape or a subscript depends on (in a subscript, a pad width, a
    reducer's stated bound, or the range of a loop whose variable stands in one), since these must be numbers for shapes and proofs.
    """
    ints = {parameter.name for parameter in program.parameters if parameter.is_size}
    if not ints:
        return frozenset()
    fixed: set[str] = set()
    for parameter in program.parameters:
        for entry in parameter.shape or ():
            fixed |= _names(entry)
    for statement in program.body:
        _collect(statement, program, fixed)
    loops = _loops(program.body)
    for _ in loops:  # bounds may mention outer variables: as many rounds as there are loops reach the fixed point
        for loop in loops:
            if loop.variable in fixed:
                fixed |= _names(loop.start) | _names(loop.stop)
    return frozenset(ints - fixed)


def _names(node: Expression) -> set[str]:
    return {n.name for n in nodes(node) if isinstance(n, SizeRef | LoopRef)}


def _loops(body: tuple[Statement, ...]) -> list[ForLoop]:
    found: list[ForLoop] = []
    for statement in body:
        match statement:
            case ForLoop():
                found += [statement, *_loops(statement.body)]
            case IfBlock():
                found += _loops(statement.body) + _loops(statement.orelse)
            case _:
                pass
    return found


def _collect(statement: Statement, program: Program, fixed: set[str]) -> None:
    """Adds the sizes and loop variables of a statement whose values shapes and proofs depend on."""
    match statement:
        case Assign():
            for subscript in statement.subscripts or ():
                fixed |= _names(subscript)
                _collect_in(subscript, fixed)
            _collect_in(statement.value, fixed)
        case Declare():
            for entry in statement.shape or ():
                fixed |= _names(entry)
        case ForLoop():
            fixed |= _names(statement.step)
            for bound in (statement.start, statement.stop):
                _collect_in(bound, fixed)
            for inner in statement.body:
                _collect(inner, program, fixed)
        case IfBlock():
            _collect_in(statement.condition, fixed)
            for inner in (*statement.body, *statement.orelse):
                _collect(inner, program, fixed)
        case CallProgram():
            callee = program.programs[statement.callee]
            free = symbolic_ints(callee)
            for parameter, arg in zip(callee.parameters, statement.args, strict=False):
                if parameter.is_size and parameter.name not in free:
                    fixed |= _names(arg)
        case Return():
            pass


def _collect_in(value: Expression, fixed: set[str]) -> None:
    for node in nodes(value):
        match node:
            case Subscript():
                for subscript in node.subscripts:
                    fixed |= _names(subscript)
                if isinstance(node.tensor, Pad):
                    for pair in node.tensor.widths:
                        fixed |= _names(pair[0]) | _names(pair[1])
            case Reducer():
                for item in node.items:
                    if isinstance(item, Compare):
                        _collect_stated(item, fixed)
            case Binary(op="*" | "//" | "%"):
                _collect_product(node, fixed)
            case _:
                pass


def _collect_stated(condition: Compare, fixed: set[str]) -> None:
    """A condition `r < e` with e of sizes and loop variables states the range of r."""
    for left, op, right in zip(condition.operands, condition.ops, condition.operands[1:], strict=False):
        if isinstance(left, IndexRef) and op in ("<", "<=") and not any(isinstance(n, IndexRef) for n in nodes(right)):
            fixed |= _names(right)


def _collect_product(node: Binary, fixed: set[str]) -> None:
    """Sizes that multiply or divide other index arithmetic."""

    def arithmetic(side: Expression) -> bool:
        return all(isinstance(n, Number | SizeRef | LoopRef | IndexRef | Binary | Unary) for n in nodes(side))

    if not (arithmetic(node.left) and arithmetic(node.right)):
        return
    if node.op in ("//", "%"):
        fixed |= _names(node.right)
    elif not isinstance(node.left, Number) and not isinstance(node.right, Number):
        fixed |= _names(node.left) | _names(node.right)

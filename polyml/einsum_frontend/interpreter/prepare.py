"""The interpreter's static half: names, summation and types of every statement, in the written order, before anything runs.

The result is the program again with each statement made ready: resolved expressions, implied sums explicit, a type for every node.
"""

from __future__ import annotations

from dataclasses import field, replace

from polyml.dtypes import DType, boolean
from polyml.einsum_frontend.interpreter.affine import has_reads
from polyml.einsum_frontend.interpreter.names import Names, children, free_indices, index_names, resolve
from polyml.einsum_frontend.interpreter.ready import (
    Ready,
    ReadyAssign,
    ReadyCall,
    ReadyDeclare,
    ReadyLoop,
    ReadyProgram,
    ReadyReturn,
)
from polyml.einsum_frontend.interpreter.sums import sum_missing
from polyml.einsum_frontend.interpreter.types import Type, check_number, promote_types, type_expression
from polyml.einsum_frontend.syntax import (
    Assign,
    Binary,
    Call,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    Name,
    Number,
    Program,
    Reducer,
    Return,
    Statement,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import assigned_names
from polyml.errors import DTypeError, EinsumSyntaxError, ShapeError
from polyml.ops import result_dtype
from polyml.records import dataclass
from polyml.source import Span

__all__ = ["prepare"]


def prepare(program: Program) -> ReadyProgram:
    """Raises EinsumSyntaxError, ShapeError or DTypeError for what is wrong at all sizes."""
    settled: dict[int, Type] = {}
    while True:  # a weak 0-d tensor takes the type of its first strong assignment: start again whenever one is found
        attempt = _Preparer(program, settled)
        ready = attempt.program()
        if attempt.settled == settled:
            return ready
        settled = attempt.settled


@dataclass
class _Scope:
    types: dict[str, Type] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    sites: dict[str, int] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()


class _Preparer:
    """settled: the types found so far of weak 0-d tensors, by the identity of the statement that makes them."""

    def __init__(self, program: Program, settled: dict[int, Type]) -> None:
        self.source = program
        self.settled = dict(settled)
        self.scope = _Scope()
        self.assigned: set[str] = set()
        self.results: tuple[tuple[Type, int], ...] = ()
        self.parameters = frozenset(p.name for p in program.parameters)
        self.scalars = frozenset(p.name for p in program.parameters if p.shape is None)
        sizes = {p.name for p in program.parameters if p.is_size}
        for p in program.parameters:
            for e in p.shape or ():
                sizes |= {n for n in _names(e) if n not in program.captured}
        self.sizes = frozenset(sizes)

    def program(self) -> ReadyProgram:
        shapes = {}
        for p in self.source.parameters:
            if p.dtype is not None:
                self.scope.types[p.name] = Type(p.dtype)
                self.scope.ranks[p.name] = len(p.shape or ())
                shapes[p.name] = tuple(self._sized(e, ()) for e in p.shape or ())
        body = self._block(self.source.body, (), ())
        return ReadyProgram(self.source, body, frozenset(self.assigned), self.results, shapes)

    def _names(self, loops: tuple[str, ...]) -> Names:
        s = self.scope
        return Names(s.ranks, self.parameters, self.sizes, loops, s.dead, self.source.captured)

    def _sized(self, expr: Expression, loops: tuple[str, ...]) -> Expression:
        """An expression of sizes, loop variables and numbers."""
        return resolve(expr, frozenset(), frozenset(), self._names(loops))

    def _block(
        self, body: tuple[Statement, ...], loops: tuple[str, ...], guards: tuple[Expression, ...]
    ) -> tuple[Ready, ...]:
        ready: list[Ready] = []
        for statement in body:
            match statement:
                case Assign():
                    ready.append(self._assign(statement, loops, guards))
                case ForLoop():
                    ready.append(self._loop(statement, loops, guards))
                case IfBlock(condition=condition):
                    before = set(self.scope.ranks)
                    ready += self._block(statement.body, loops, (*guards, condition))
                    if (self.scope.ranks.keys() - before) & assigned_names(statement.orelse):
                        raise EinsumSyntaxError("an else assigns what its if makes", span=statement.span)
                    ready += self._block(statement.orelse, loops, (*guards, Unary("not", condition, condition.span)))
                case Declare() | CallProgram() | Return() if guards:
                    raise EinsumSyntaxError("an if restricts assignments only", span=statement.span)
                case Declare():
                    ready.append(self._declare(statement, loops))
                case CallProgram():
                    ready.append(self._call(statement, loops))
                case Return():
                    self.results = tuple(
                        self._result(n, s) for n, s in zip(statement.names, statement.name_spans, strict=True)
                    )
                    ready.append(ReadyReturn(statement))
        return tuple(ready)

    def _result(self, name: str, span: Span) -> tuple[Type, int]:
        if name not in self.scope.ranks:
            hint = f"declare {name} before the loop" if name in self.scope.dead else None
            raise EinsumSyntaxError(f"{name} is returned, but not a tensor here", span=span, hint=hint)
        return Type(self.scope.types[name].dtype), self.scope.ranks[name]

    def _declare(self, statement: Declare, loops: tuple[str, ...]) -> ReadyDeclare:
        if statement.name in self.scope.ranks or statement.name in self.parameters:
            raise EinsumSyntaxError(f"{statement.name} exists already", span=statement.span)
        shape = tuple(self._sized(e, loops) for e in statement.shape or ())
        fill = None if statement.fill is None else self._sized(statement.fill, loops)
        types: dict[int, Type] = {}
        if fill is not None:
            type_expression(fill, self.scope.types, types)
            check_number(fill, types, statement.dtype, fill.span)
            if not _may_store(types[id(fill)], statement.dtype, fill):
                message = f"{statement.name} is {statement.dtype}, and is filled with {types[id(fill)].dtype}"
                raise DTypeError(message, span=fill.span, hint=f"write the conversion: {statement.dtype}(..)")
        self._create(statement.name, Type(statement.dtype), len(shape))
        return ReadyDeclare(statement, shape, fill, types)

    def _create(self, name: str, found: Type, rank: int) -> None:
        if name in self.sizes or name in self.source.captured:
            raise EinsumSyntaxError(f"{name} is a size or number and cannot be assigned", span=self.source.body[0].span)
        self.scope.types[name], self.scope.ranks[name] = found, rank
        self.scope.dead -= {name}

    def _loop(self, statement: ForLoop, loops: tuple[str, ...], guards: tuple[Expression, ...]) -> ReadyLoop:
        start, stop, step = (self._sized(e, loops) for e in (statement.start, statement.stop, statement.step))
        before = set(self.scope.ranks)
        body = self._block(statement.body, (*loops, statement.variable), guards)
        temporaries = frozenset(set(self.scope.ranks) - before)
        for name in temporaries:
            del self.scope.ranks[name], self.scope.types[name]
            self.scope.sites.pop(name, None)
        self.scope.dead |= temporaries
        return ReadyLoop(statement, (start, stop, step), body, temporaries)

    def _call(self, statement: CallProgram, loops: tuple[str, ...]) -> ReadyCall:
        callee = prepare(self.source.programs[statement.callee])
        parameters = callee.source.parameters
        if len(parameters) != len(statement.args) or len(callee.results) != len(statement.targets):
            message = f"{statement.callee} takes {len(parameters)} arguments and returns {len(callee.results)} results"
            raise EinsumSyntaxError(message, span=statement.span)
        args: list[Expression | str] = []
        types: dict[int, Type] = {}
        for p, arg in zip(parameters, statement.args, strict=True):
            if p.shape is None:
                scalar = self._sized(arg, loops)
                type_expression(scalar, self.scope.types, types)
                if p.dtype is not None:
                    check_number(scalar, types, p.dtype, scalar.span)
                args.append(scalar)
                continue
            if not isinstance(arg, Name) or self.scope.ranks.get(arg.identifier) != len(p.shape):
                raise ShapeError(
                    f"{statement.callee} takes a tensor of {len(p.shape)} dimensions for {p.name}", span=arg.span
                )
            if self.scope.types[arg.identifier].dtype != p.dtype:
                raise DTypeError(f"{arg.identifier} is not {p.dtype}, as {statement.callee} asks", span=arg.span)
            args.append(arg.identifier)
            if p.name in callee.assigned and arg.identifier in self.parameters:
                self.assigned.add(arg.identifier)
        creates = frozenset(t for t in statement.targets if t not in self.scope.ranks)
        for target, (found, rank) in zip(statement.targets, callee.results, strict=True):
            if target in self.parameters:
                self.assigned.add(target)
            if target in creates:
                self._create(target, found, rank)
            elif self.scope.ranks[target] != rank or target in self.scalars:
                raise ShapeError(
                    f"{target} has {self.scope.ranks[target]} dimensions, the result {rank}", span=statement.span
                )
        return ReadyCall(statement, callee, tuple(args), creates, types)

    def _assign(self, statement: Assign, loops: tuple[str, ...], conditions: tuple[Expression, ...]) -> ReadyAssign:
        names = self._names(loops)
        raw_left = statement.subscripts or ()
        left_names = index_names(tuple(_as_subscript(e) for e in raw_left), frozenset(), names)
        indices = left_names | index_names((statement.value,), left_names, names)
        left = tuple(resolve(e, indices, left_names, names) for e in raw_left)
        value = resolve(statement.value, indices, left_names, names)
        ifs = tuple(resolve(c, indices, left_names, names) for c in conditions)
        missing = free_indices(value) - left_names
        if missing and statement.op in ("*=", "/="):
            raise EinsumSyntaxError(f"'{statement.op}' sums nothing: {', '.join(sorted(missing))}", span=statement.span)
        value = sum_missing(value, missing)
        guards, value = _restrict(statement, left_names, missing, ifs, value)
        self._check_target(statement, left)
        types: dict[int, Type] = {}
        type_expression(value, self.scope.types, types)
        for e in left:
            type_expression(e, self.scope.types, types, in_subscript=True)
            if not types[id(e)].dtype.is_integer:
                raise DTypeError(f"a subscript of type {types[id(e)].dtype}; indices are integers", span=e.span)
        creates = statement.target not in self.scope.ranks
        found = self._target_type(statement, types[id(value)], creates=creates)
        if not creates:
            stored = found if statement.op == "=" else promote_types(found, types[id(value)])
            check_number(value, types, stored.dtype, value.span)
        return ReadyAssign(statement, left, value, tuple(sorted(left_names)), ifs, guards, creates, found, types)

    def _check_target(self, statement: Assign, left: tuple[Expression, ...]) -> None:
        name, span = statement.target, statement.target_span
        if name in self.scalars or name in self.sizes:
            raise EinsumSyntaxError(f"the scalar parameter {name} cannot be assigned", span=span)
        if name in self.parameters:
            self.assigned.add(name)
        if name in self.scope.ranks:
            if self.scope.ranks[name] != len(left):
                raise ShapeError(f"{name} has {self.scope.ranks[name]} dimensions, not {len(left)}", span=span)
        elif statement.op != "=":
            hint = f"declare {name} before the loop" if name in self.scope.dead else f"declare {name} with a fill"
            raise EinsumSyntaxError(f"'{statement.op}' on {name}, which has no value", span=span, hint=hint)
        elif not all(isinstance(e, IndexRef) for e in left) or len({free_indices(e) for e in left}) != len(left):
            hint = f"declare {name} before"
            raise EinsumSyntaxError(
                f"{name} is new: its subscripts must be distinct plain indices", span=span, hint=hint
            )
        told = frozenset[str]().union(*(free_indices(e) for e in left if not has_reads(e)))
        if statement.op == "=" and any(has_reads(e) and free_indices(e) - told for e in left):
            raise ShapeError("a gathered left side needs '+=', or a loop over its indices", span=span)

    def _target_type(self, statement: Assign, value: Type, *, creates: bool) -> Type:
        """The target's type; records what a weak 0-d tensor turns out to be."""
        name, rank = statement.target, len(statement.subscripts or ())
        if creates:
            self.scope.sites[name] = id(statement)
            found = self.settled.get(id(statement), value) if rank == 0 else Type(value.dtype)
            self._create(name, found, rank)
            return found
        target = self.scope.types[name]
        computed = value
        if statement.op != "=":
            computed = promote_types(target, value)
            if statement.op == "/=":
                computed = Type(result_dtype("div", computed.dtype), computed.weak)
        if target.weak:
            better = computed if not computed.weak else promote_types(target, computed)
            if better != target:
                self.settled[self.scope.sites[name]] = better
        elif not _may_store(computed, target.dtype, statement.value if statement.op == "=" else None):
            message = f"'{statement.op}' of {computed.dtype} into {name}, which is {target.dtype}"
            raise DTypeError(message, span=statement.span, hint=f"write the conversion: {target.dtype}(..)")
        return target


def _may_store(source: Type, target: DType, assigned: Expression | None) -> bool:
    """Whether a value may enter a tensor unasked: no float becomes an integer (a whole number does, where it is assigned), and no number a bool."""
    match assigned:
        case Number(value=int() | float() as value) if target != boolean and float(value).is_integer():
            return True
    if target == boolean:
        return source.dtype == boolean
    if target.is_complex or not source.dtype.is_complex:
        return target.is_float or target.is_complex or not source.dtype.is_float
    return False


def _as_subscript(expr: Expression) -> Expression:
    """Left subscripts count as subscripts: a wrapper that lets `index_names` see them so."""
    return Subscript("", (expr,), expr.span)


def _names(expr: Expression) -> frozenset[str]:
    if isinstance(expr, Name):
        return frozenset((expr.identifier,))
    return frozenset[str]().union(*(_names(e) for e in children(expr)))


def _restrict(
    statement: Assign, left: frozenset[str], missing: frozenset[str], guards: tuple[Expression, ...], value: Expression
) -> tuple[tuple[Expression, ...], Expression]:
    """The guards on left instances, and the value with the guards that name summed indices moved into the implied sums."""
    outer = []
    for guard in guards:
        named = free_indices(guard)
        if named <= left:
            outer.append(guard)
        elif statement.op == "=" or not named <= left | missing or not named & missing <= _summed(value):
            unknown = ", ".join(sorted(named - left))
            hint = "put the condition into a reducer"
            raise EinsumSyntaxError(f"the if names {unknown}, not on the left side", span=guard.span, hint=hint)
        else:
            value = _add_condition(value, guard, named & missing)
    return tuple(outer), value


def _summed(value: Expression) -> frozenset[str]:
    """The indices that an implied sum around every additive term binds."""
    match value:
        case Binary(op="+" | "-"):
            return _summed(value.left) & _summed(value.right)
        case Reducer(implied=True):
            return frozenset(e.name for e in value.items if isinstance(e, IndexRef))
        case _:
            return frozenset()


def _add_condition(expr: Expression, condition: Expression, summed: frozenset[str]) -> Expression:
    match expr:
        case Reducer(implied=True):
            own = {e.name for e in expr.items if isinstance(e, IndexRef)}
            if not own & summed:
                return replace(expr, body=_add_condition(expr.body, condition, summed))
            if not summed <= own:
                raise EinsumSyntaxError(
                    "the if names indices of two sums", span=condition.span, hint="write the reducers"
                )
            return replace(expr, items=(*expr.items, condition))
        case Binary():
            left, right = (_add_condition(e, condition, summed) for e in (expr.left, expr.right))
            return replace(expr, left=left, right=right)
        case Unary():
            return replace(expr, operand=_add_condition(expr.operand, condition, summed))
        case Reducer():
            return replace(expr, body=_add_condition(expr.body, condition, summed))
        case Call():
            return replace(expr, args=tuple(_add_condition(e, condition, summed) for e in expr.args))
        case _:
            return expr

"""Parsed Program -> resolved Program: names told apart, implied sums explicit, and every check that needs no sizes.

Choices where the language page is silent (each is a refusal unless it says otherwise):

- A name that the program assigns anywhere is never looked up in the enclosing scope, as in Python.
- A size of a parameter's shape is symbolic even if the enclosing scope has a number of that name, unless no entry binds it (`f32["T+1"]` alone): then it is that number.
- Declarations and calls of programs stand at the top level or in a `for`, not under `if`; `return` comes last, at the top level, and names each result once.
- A `for` variable is no other name of the program while its loop runs.
- An `if` above `op=` that names summed indices needs every additive term to be summed over them (`y[n] += x[n, k] + b[n]` would be unclear).
- A fill is made of numbers, sizes and scalars. Arguments of a called program are tensor names (in resolved form `Subscript(name, ())`), expressions of scalars
  and numbers for its scalar parameters, and affine expressions of sizes and loop variables for its `int`s. A tensor that it writes is passed once.
- A program that returns nothing and assigns no parameter is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from polyml.einsum_frontend.affine_form import require_affine
from polyml.einsum_frontend.names import is_isl_name, is_tensor_name
from polyml.einsum_frontend.printer import format_expression
from polyml.einsum_frontend.resolve_calls import resolve_call
from polyml.einsum_frontend.resolve_conditions import Facts, resolve_condition
from polyml.einsum_frontend.resolve_expressions import Names, free_indices, resolve_expression, resolve_subscript
from polyml.einsum_frontend.resolve_shapes import resolve_declared_shape, resolve_parameters
from polyml.einsum_frontend.scope import Scope, Tensor, wrong_rank
from polyml.einsum_frontend.signature import written_parameters
from polyml.einsum_frontend.summation import imply_sums, summed_by_every_term
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    LoopRef,
    Number,
    Program,
    Reducer,
    Return,
    SizeRef,
    Statement,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import assigned_names, walk, words
from polyml.errors import EinsumSyntaxError
from polyml.nesting import deeply_nested
from polyml.records import dataclass
from polyml.source import Span

__all__ = ["resolve"]


@deeply_nested()
def resolve(program: Program, namespace: Mapping[str, object]) -> Program:
    """The resolved form of a parsed program. `namespace`: the enclosing scope; only numbers and objects with a resolved `program` are read from it.

    Raises:
        EinsumSyntaxError: names, statements or sums that the language refuses; each with its span and what would fix it.
        NotAffineError: a subscript, condition or bound that is not quasi-affine.
    """
    for parameter in program.parameters:
        if not (is_isl_name if parameter.is_size else is_tensor_name)(parameter.name):
            hint = "use ASCII letters, digits and underscores, at most 200, and none of isl's words (mod, exists, let, ...)"
            message = f"a parameter cannot be named {parameter.name!r}"
            raise EinsumSyntaxError(message, span=parameter.span, hint=hint)
    scope = Scope(program.name, namespace, words(program), assigned_names(program.body))
    try:
        parameters = resolve_parameters(program.parameters, scope)
        body = _Resolver(scope).block(program.body, at_top=True)
    except RecursionError:
        span = program.parameters[0].span if program.parameters else None
        hint = "give parts of it names of their own"
        raise EinsumSyntaxError("the program is nested too deeply", span=span, hint=hint) from None
    resolved = replace(program, parameters=parameters, body=body, captured=scope.captured, programs=scope.programs)
    if not (body and isinstance(body[-1], Return)) and not written_parameters(resolved):
        span = body[-1].span if body else None
        hint = "end it with `return y`, or assign a parameter"
        raise EinsumSyntaxError("the program has no result", span=span, hint=hint)
    return resolved


@dataclass(slots=True)
class _Resolver:
    """Resolves statements in order; `scope` follows along."""

    scope: Scope

    def block(
        self,
        body: tuple[Statement, ...],
        *,
        at_top: bool = False,
        under_if: bool = False,
        facts: list[Facts] | None = None,
    ) -> tuple[Statement, ...]:
        """The statements in resolved form; what the enclosing `if`s must know about them is added to `facts`."""
        facts = [] if facts is None else facts
        resolved: list[Statement] = []
        for number, statement in enumerate(body):
            match statement:
                case Assign():
                    resolved.append(self.assign(statement, facts))
                case Declare():
                    _refuse_under_if("a declaration", statement.span, under_if)
                    resolved.append(self.declare(statement))
                case CallProgram():
                    _refuse_under_if("a call of a program", statement.span, under_if)
                    resolved.append(resolve_call(statement, self.scope))
                case ForLoop():
                    resolved.append(self.for_loop(statement, under_if, facts))
                case IfBlock():
                    resolved.append(self.if_block(statement, facts))
                case Return():
                    if not at_top or number + 1 < len(body):
                        hint = "a program returns once, as its last statement"
                        raise EinsumSyntaxError("`return` is not the last statement", span=statement.span, hint=hint)
                    resolved.append(self.results(statement))
                case _:
                    assert_never(statement)
        return tuple(resolved)

    # -- assignments ------------------------------------------------------------------------------------------------------------

    def assign(self, statement: Assign, facts: list[Facts]) -> Assign:
        """One assignment: names, then sums, then what the left side needs."""
        scope = self.scope
        self._check_target(statement.target, statement.target_span)
        parsed_left = statement.subscripts or ()
        for part in (part for subscript in parsed_left for part in walk(subscript)):
            if isinstance(part, Reducer):
                hint = "assign it to a tensor first"
                raise EinsumSyntaxError("a left subscript cannot reduce", span=part.span, hint=hint)
        left = frozenset(name for s in _as_access(statement) for name in free_indices(s, scope, frozenset()))
        names = Names(scope, left, left | free_indices(statement.value, scope, left))
        value = resolve_expression(statement.value, names, {})
        subscripts = tuple(resolve_subscript(s, names, {}, read=False) for s in parsed_left)
        free = frozenset(scope.safe(name) for name in names.free)
        missing = free - frozenset(scope.safe(name) for name in left)
        if missing and statement.op in {"*=", "/="}:
            culprit = next(p for p in walk(value) if isinstance(p, IndexRef) and p.name in missing)
            hint = f"reduce explicitly: prod[{culprit.name}](...) or sum[{culprit.name}](...)"
            message = f"`{statement.op}` sums nothing, and the left side lacks {culprit.name!r}"
            raise EinsumSyntaxError(message, span=culprit.span, hint=hint)
        value = imply_sums(value, missing)
        self._note_target(statement, subscripts)
        facts.append(Facts(statement, free, missing, summed_by_every_term(value)))
        return replace(
            statement,
            target=scope.safe(statement.target),
            subscripts=None if statement.subscripts is None else subscripts,
            value=value,
        )

    def _check_target(self, name: str, span: Span) -> None:
        scope = self.scope
        if name in scope.loops:
            hint = "its range says which values it takes; assign a tensor of another name"
            raise EinsumSyntaxError(f"{name!r} is a loop variable and cannot be assigned", span=span, hint=hint)
        if name in scope.sizes:
            hint = "the arguments of a call say what it is; assign a tensor of another name"
            raise EinsumSyntaxError(f"{name!r} is a size and cannot be assigned", span=span, hint=hint)
        tensor = scope.tensors.get(name)
        if tensor is not None and tensor.is_scalar_parameter:
            hint = "assign a tensor of another name"
            raise EinsumSyntaxError(f"{name!r} is a scalar parameter and cannot be assigned", span=span, hint=hint)

    def _note_target(self, statement: Assign, subscripts: tuple[Expression, ...]) -> None:
        """Checks the left side against what is known of its tensor, and notes a new one."""
        scope, name, span = self.scope, statement.target, statement.target_span
        tensor = scope.tensors.get(name)
        if tensor is None:
            self._note_new(statement, subscripts)
            return
        if tensor.rank != len(subscripts):
            if not subscripts:
                example = f"{name}[{', '.join('ijklmn'[: tensor.rank])}]"
                message = f"{name!r} has {tensor.rank} dimensions and is assigned without subscripts"
                raise EinsumSyntaxError(message, span=span, hint=f"write {example} = ...")
            raise wrong_rank(name, tensor.rank, len(subscripts), span)
        if statement.op != "=" and not tensor.has_value and not scope.assigned_somewhere_in_a_loop(name):
            hint = f"fill it where it is declared: {name}: ... = 0"
            raise EinsumSyntaxError(f"`{statement.op}` on {name!r}, which has no value yet", span=span, hint=hint)
        tensor.has_value = True

    def _note_new(self, statement: Assign, subscripts: tuple[Expression, ...]) -> None:
        scope, name, span = self.scope, statement.target, statement.target_span
        if statement.op != "=":
            if name in scope.gone:
                raise scope.undefined(name, span)
            hint = f"declare and fill it first: {name}: f32[...] = 0"
            raise EinsumSyntaxError(f"`{statement.op}` on {name!r}, which has no value yet", span=span, hint=hint)
        declaration = f"declare it first: {name}: f32[...]"
        seen: set[str] = set()
        for subscript in subscripts:
            if any(isinstance(part, LoopRef) for part in walk(subscript)):
                hint = f"declare it before the loop: {name}: f32[...]"
                message = f"the first left side of {name!r} is subscripted by a loop variable"
                raise EinsumSyntaxError(message, span=subscript.span, hint=hint)
            if not isinstance(subscript, IndexRef):
                message = f"the first left side of {name!r} gives it its shape, and needs plain indices"
                hint = declaration
                if isinstance(subscript, SizeRef) or (isinstance(subscript, Subscript) and not subscript.subscripts):
                    message += f": {format_expression(subscript)!r} is one number"
                    hint = f"choose another name for the index, or {declaration}"
                raise EinsumSyntaxError(message, span=subscript.span, hint=hint)
            if subscript.name in seen:
                message = f"the first left side of {name!r} has {subscript.name!r} twice"
                raise EinsumSyntaxError(message, span=subscript.span, hint=declaration)
            seen.add(subscript.name)
        scope.tensors[name] = Tensor(len(subscripts), has_value=True)

    def declare(self, statement: Declare) -> Declare:
        """A declaration: a new name, an affine shape, a fill without indices."""
        scope, name = self.scope, statement.name
        if name in scope.tensors or name in scope.sizes or name in scope.loops:
            hint = "choose another name"
            raise EinsumSyntaxError(f"{name!r} exists already and cannot be declared", span=statement.span, hint=hint)
        shape = None if statement.shape is None else resolve_declared_shape(statement.shape, scope)
        fill = None
        if statement.fill is not None:
            for part in walk(statement.fill):
                if isinstance(part, Reducer) or (isinstance(part, Subscript) and part.subscripts):
                    left = f"{name}[n]" if statement.shape else name
                    hint = f"declare it without a fill, and assign it: {left} = ..."
                    message = "a fill is one number for the whole tensor"
                    raise EinsumSyntaxError(message, span=part.span, hint=hint)
            fill = resolve_expression(statement.fill, Names(scope), {})
        scope.tensors[name] = Tensor(len(shape or ()), has_value=fill is not None)
        return replace(statement, name=scope.safe(name), shape=shape, fill=fill)

    # -- control ----------------------------------------------------------------------------------------------------------------

    def for_loop(self, loop: ForLoop, under_if: bool, facts: list[Facts]) -> ForLoop:
        """A `for`: affine bounds, a constant step, a variable that is nothing else, a body of its own."""
        scope, variable = self.scope, loop.variable
        if variable in scope.loops or variable in scope.sizes or variable in scope.tensors:
            hint = "choose another name for the loop variable"
            raise EinsumSyntaxError(f"{variable!r} exists already", span=loop.span, hint=hint)
        bounds: list[Expression] = []
        for bound in (loop.start, loop.stop, loop.step):
            resolved = resolve_expression(bound, Names(scope), {})
            require_affine(resolved, role="a loop bound", reads=False, extrema=True)
            bounds.append(resolved)
        step = _constant(bounds[2])
        if step is None or step == 0:
            hint = "for t in range(T - 1, -1, -1):"
            if step is None:
                hint = f"write the number, or read one of the enclosing scope; {format_expression(bounds[2])!r} is known at a call only"
            raise EinsumSyntaxError("the step of a `for` is an integer other than 0", span=loop.step.span, hint=hint)
        with scope.loop(variable, assigned_names(loop.body)):
            body = self.block(loop.body, under_if=under_if, facts=facts)
        number = Number(step, loop.step.span)
        return replace(loop, variable=scope.safe(variable), start=bounds[0], stop=bounds[1], step=number, body=body)

    def if_block(self, statement: IfBlock, outer: list[Facts]) -> IfBlock:
        """An `if`: its statements first, since they decide which names of the condition are indices."""
        facts: list[Facts] = []
        loops = tuple(self.scope.loops)
        before = set(self.scope.tensors)
        body = self.block(statement.body, under_if=True, facts=facts)
        _refuse_made_by_both(statement, self.scope.tensors.keys() - before)
        orelse = self.block(statement.orelse, under_if=True, facts=facts)
        outer.extend(facts)
        assert tuple(self.scope.loops) == loops, "internal: a loop was left open"
        return replace(
            statement,
            condition=resolve_condition(statement.condition, self.scope, tuple(facts)),
            body=body,
            orelse=orelse,
        )

    def results(self, statement: Return) -> Return:
        """A `return`: tensors that exist, each once."""
        scope = self.scope
        seen: set[str] = set()
        for name, span in zip(statement.names, statement.name_spans, strict=True):
            if name in seen:
                hint = "give the copy a name of its own"
                raise EinsumSyntaxError(f"{name!r} is returned twice", span=span, hint=hint)
            seen.add(name)
            if name in scope.sizes or (name in scope.tensors and scope.tensors[name].is_scalar_parameter):
                hint = f"assign it to a 0-d tensor: r = {name}; return r"
                raise EinsumSyntaxError(f"{name!r} is not a tensor of the program", span=span, hint=hint)
            if name not in scope.tensors:
                raise scope.undefined(name, span)
            if not scope.tensors[name].has_value:
                hint = "assign it, or fill it where it is declared"
                raise EinsumSyntaxError(f"{name!r} is returned, but has no value", span=span, hint=hint)
        return replace(statement, names=tuple(scope.safe(name) for name in statement.names))


def _refuse_under_if(what: str, span: Span, under_if: bool) -> None:
    if under_if:
        raise EinsumSyntaxError(f"{what} cannot stand under `if`", span=span, hint="write it before the `if`")


def _refuse_made_by_both(statement: IfBlock, made: set[str]) -> None:
    """Refuses an `else` that assigns what the `if` above it has made: the shape would be that of the `if`'s elements alone."""
    both = made & assigned_names(statement.orelse)
    if both:
        name = min(both)
        message = f"{name!r} is made under an `if`, which gives it the shape of what it writes, and its `else` writes other elements"
        hint = f"declare it before the `if`: {name}: f32[...]"
        raise EinsumSyntaxError(message, span=statement.condition.span, hint=hint)


def _as_access(statement: Assign) -> tuple[Subscript, ...]:
    """The left side as an access, so that its subscripts count as subscripts."""
    if statement.subscripts is None:
        return ()
    return (Subscript(statement.target, statement.subscripts, statement.target_span),)


def _constant(e: Expression) -> int | None:
    match e:
        case Number(value=int(value)):
            return value
        case Unary(op="-"):
            inside = _constant(e.operand)
            return None if inside is None else -inside
        case _:
            return None

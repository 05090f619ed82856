"""Program -> Graph: one walk over the statements of a resolved Program, for one Signature.

Statement by statement: index ranges, the domain, typed right side (nested reducers and gather checks become Equations of their own), proofs, and
the Equation in SSA. `for` becomes Loop with carried tensors; another program that is called is walked in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from polyml.einsum_frontend.arguments import ArgumentType, Signature, bind_sizes
from polyml.einsum_frontend.proofs import Scope
from polyml.einsum_frontend.quasi_affine import Names, needs_affine
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    Program,
    Return,
    Statement,
    Unary,
)
from polyml.einsum_frontend.typing import stored
from polyml.errors import EinsumSyntaxError, ShapeError
from polyml.graph.builder.assign import assign
from polyml.graph.builder.body import Body
from polyml.graph.builder.call import bind_call, finish_call
from polyml.graph.builder.loop import build_loop
from polyml.graph.builder.parts import Path, copied, fill, materialized
from polyml.graph.builder.state import State, Variable
from polyml.graph.ir import Graph, Input, Tensor
from polyml.sets.affine import Affine, Extent, affine

__all__ = ["build"]


def build(program: Program, signature: Signature, *, reorders: bool = False) -> Graph:
    """The graph of one call's program.

    Args:
        program: resolved. signature: dtypes, shapes and the values of the `int` parameters that do not stay symbolic. reorders: sums of products may be added up in another order.

    Raises:
        ShapeError, BoundsError, UnboundedDomainError, NotAffineError, DTypeError, EinsumSyntaxError: with the place in the program.
    """
    extents = frozenset[str]().union(
        *(affine(e).variables() for a in signature.arguments if isinstance(a, ArgumentType) for e in a.shape)
    )
    ints = [p.name for p, a in zip(program.parameters, signature.arguments, strict=True) if a is None]
    symbolic = tuple(dict.fromkeys([*ints, *sorted(extents)]))
    state = State(symbolic, extents=extents, examples=dict(signature.examples), names=set(symbolic), reorders=reorders)
    state.assume([affine(name) - 1 for name in sorted(extents)])
    sizes = bind_sizes(program, signature, state.agree)
    inputs: list[tuple[str, Tensor]] = []
    for parameter, argument in zip(program.parameters, signature.arguments, strict=True):
        if isinstance(argument, ArgumentType):
            tensor = state.tensor(parameter.name, argument.dtype, argument.shape)
            state.inputs.add(tensor.name)
            state.env[parameter.name] = Variable(
                f"{parameter.name}#{len(state.names)}", parameter.name, tensor, argument.dtype, argument.shape
            )
            inputs.append((parameter.name, tensor))
    walker = _Walker(program, state, sizes)
    walker.block(program.body, ())
    outputs = tuple(walker.result(name) for name in walker.returned)
    if single := state.single_values():
        raise ShapeError(f"{program.name} is right for one value of {', '.join(single)} only")
    finals = {name: state.env[name].tensor for name, tensor in inputs if state.env[name].tensor != tensor}
    return Graph(
        name=program.name,
        sizes=symbolic,
        context=state.known,
        requires=state.required(),
        examples=dict(signature.examples),
        inputs=tuple(Input(tensor=t, written=name in finals, final=finals.get(name)) for name, t in inputs),
        ops=(*state.ahead, *state.frames[0].ops, *state.late_checks()),
        outputs=outputs,
        warnings=tuple(state.warnings),
    )


class _Walker:
    """Walks one program's statements; `loops` and `sizes` say what its names stand for."""

    def __init__(
        self, program: Program, state: State, sizes: Mapping[str, Affine], loops: Mapping[str, Affine] | None = None
    ) -> None:
        self.program, self.state = program, state
        self.sizes, self.loops = dict(sizes), dict(loops or {})
        self.returned: tuple[str, ...] = ()

    @property
    def names(self) -> Names:
        return Names(self.sizes, self.loops, {})

    def block(self, body: Sequence[Statement], guards: tuple[Expression, ...]) -> None:
        for statement in body:
            match statement:
                case Assign():
                    assign(self.state, self.names, statement, guards)
                case Declare():
                    self.declare(statement)
                case ForLoop():
                    self.loop(statement, guards)
                case IfBlock():
                    self.block(statement.body, (*guards, statement.condition))
                    if statement.orelse:
                        self.block(
                            statement.orelse, (*guards, Unary("not", statement.condition, statement.condition.span))
                        )
                case CallProgram():
                    self.call(statement, guards)
                case Return():
                    self.leave(statement)
                case _:
                    assert_never(statement)

    # -- declarations and results ---------------------------------------------------------------------------------

    def declare(self, statement: Declare) -> None:
        shape: list[Extent] = []
        for entry in statement.shape or ():
            extent = needs_affine(entry, self.names, role=f"the shape of {statement.name}")
            if not extent.is_constant and extent.variables() <= {*self.state.sizes}:
                self.state.assume([extent])
                shape.append(extent)
                continue
            if not extent.is_constant:
                message = f"the shape of {statement.name} depends on {extent}, which is not one number"
                raise ShapeError(message, span=entry.span, hint="declare it with its largest extent")
            if extent.constant < 0:
                raise ShapeError(f"{statement.name} would have a dimension of {extent.constant}", span=entry.span)
            shape.append(extent.constant)
        key = self.state.fresh(f"{statement.name}#")
        home = len(self.state.frames) - 1
        variable = Variable(key, statement.name, None, statement.dtype, tuple(shape), home=home)
        if statement.fill is not None:
            body = Body(self.state, self.names, {}, statement.name)
            value = body.value(statement.fill, Path(Scope(self.state.outer)))
            result = self.state.tensor(statement.name, statement.dtype, shape)
            element = stored(value, statement.dtype, name=statement.name, span=statement.span)
            self.state.emit(fill(result, element, statement.span))
            variable = replace(variable, tensor=result, home=None)
        self.state.env[statement.name] = variable

    def leave(self, statement: Return) -> None:
        for name, span in zip(statement.names, statement.name_spans, strict=True):
            variable = self.state.lookup(name, span)
            self.state.require_written(variable, self.state.box(variable), "returned", span)
        self.returned = statement.names

    def result(self, name: str) -> Tensor:
        """The tensor to return; an argument that nothing has written is copied, so that a result is an array of its own."""
        variable = materialized(self.state, self.state.env[name])
        if variable.tensor is not None and variable.tensor.name in self.state.inputs:
            variable = copied(self.state, variable, None)
        assert variable.tensor is not None, "internal: a returned tensor has a value"
        return variable.tensor

    # -- loops and other programs ---------------------------------------------------------------------------------

    def loop(self, statement: ForLoop, guards: tuple[Expression, ...]) -> None:
        def walk(state: State, variable: str) -> None:
            loops = {**self.loops, statement.variable: affine(variable)}
            _Walker(self.program, state, self.sizes, loops).block(statement.body, guards)

        build_loop(self.state, self.names, statement, self.program, walk)

    def call(self, statement: CallProgram, guards: tuple[Expression, ...]) -> None:
        """Walks the callee with its parameters bound to the caller's values."""
        if guards:
            raise EinsumSyntaxError(
                "another program cannot be called under an `if`",
                span=statement.span,
                hint="call it outside, and use its result under the `if`",
            )
        state, callee = self.state, self.program.programs[statement.callee]
        bound = bind_call(state, self.names, callee, statement)
        outside = state.env, state.dead
        state.env, state.dead = dict(bound.env), set()
        inside = _Walker(callee, state, bound.sizes)
        inside.block(callee.body, ())
        after = state.env
        state.env, state.dead = outside
        finish_call(state, bound, after, inside.returned, statement)

"""Program -> Graph: one walk over the statements of a resolved Program, for one Signature.

Statement by statement: index ranges, the domain, typed right side (nested reducers and gather checks become Equations of their own), proofs, and
the Equation in SSA. `for` becomes Loop with carried tensors; another program that is called is walked in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import islpy as isl

from polyml.einsum_frontend.arguments import ArgumentType, Signature, bind_sizes, symbolic_ints
from polyml.einsum_frontend.proofs import Scope, parameters
from polyml.einsum_frontend.quasi_affine import Names, needs_affine
from polyml.einsum_frontend.ranges import Range, interval
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
    Subscript,
    Unary,
)
from polyml.einsum_frontend.typing import Typed, cast, stored
from polyml.errors import DTypeError, EinsumSyntaxError, NotAffineError, ShapeError
from polyml.expressions import Const, Read
from polyml.graph.build_assign import assign
from polyml.graph.build_body import Body
from polyml.graph.build_parts import Path, fill
from polyml.graph.build_state import Frame, LoopLevel, State, Variable, loop_constraint
from polyml.graph.ir import Carried, Graph, Input, Loop, Tensor
from polyml.sets.affine import Affine, affine

__all__ = ["build"]


def build(program: Program, signature: Signature) -> Graph:
    """The graph of one call's program.

    Args:
        program: resolved. signature: dtypes, shapes and the values of the `int` parameters that do not stay symbolic (`symbolic_ints`).

    Raises:
        ShapeError, BoundsError, UnboundedDomainError, NotAffineError, DTypeError, EinsumSyntaxError: with the place in the program.
    """
    sizes = bind_sizes(program, signature)
    symbolic = tuple(p.name for p, a in zip(program.parameters, signature.arguments, strict=True) if a is None)
    unfit = sorted(set(symbolic) - symbolic_ints(program))
    assert not unfit, f"internal: the int parameter {unfit} cannot stay symbolic"
    state = State(symbolic, names=set(symbolic))
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
    finals = {name: state.env[name].tensor for name, tensor in inputs if state.env[name].tensor != tensor}
    return Graph(
        name=program.name,
        sizes=symbolic,
        context=isl.Set(f"{parameters(state.outer)}{{ : }}"),
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
                    self.assign(statement, guards)
                case Declare():
                    self.declare(statement)
                case ForLoop():
                    self.loop(statement, guards)
                case IfBlock():
                    self.block(statement.body, (*guards, statement.condition))
                    if statement.orelse:
                        self.block(statement.orelse, (*guards, negation(statement.condition)))
                case CallProgram():
                    self.call(statement, guards)
                case Return():
                    self.leave(statement)
                case _:
                    assert_never(statement)

    def assign(self, statement: Assign, guards: tuple[Expression, ...]) -> None:
        assign(self.state, self.names, statement, guards)

    # -- declarations and results ---------------------------------------------------------------------------------

    def declare(self, statement: Declare) -> None:
        shape: list[int] = []
        for entry in statement.shape or ():
            extent = needs_affine(entry, self.names, role=f"the shape of {statement.name}")
            assert extent.is_constant, "internal: an int parameter that appears in a shape is specialized"
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
        variable = self.state.env[name]
        tensor = self.materialized(name, variable).tensor
        assert tensor is not None, "internal: a returned tensor is written"
        if tensor.name not in self.state.inputs:
            return tensor
        copy = self.state.tensor(f"{name}_copy", variable.dtype, variable.shape, name)
        subscripts = tuple(affine(f"i{d}") for d in range(len(variable.shape)))
        self.state.emit(fill(copy, Read(tensor.name, subscripts, variable.dtype), None))
        return copy

    def materialized(self, name: str, variable: Variable) -> Variable:
        """The variable with an SSA value: zeros, where it is declared and not written yet."""
        if variable.tensor is None:
            tensor = self.state.tensor(variable.label, variable.dtype, variable.shape)
            self.state.emit(fill(tensor, cast(Const(0, variable.dtype), variable.dtype), None))
            variable = replace(variable, tensor=tensor)
            self.state.env[name] = variable
        return variable

    # -- loops ----------------------------------------------------------------------------------------------------

    def loop(self, statement: ForLoop, guards: tuple[Expression, ...]) -> None:
        state = self.state
        start = needs_affine(statement.start, self.names, role="a loop bound")
        stop = needs_affine(statement.stop, self.names, role="a loop bound")
        step = needs_affine(statement.step, self.names, role="a loop step")
        if not step.is_constant or step.constant == 0:
            raise NotAffineError("the step of a loop must be an integer that is not zero", span=statement.step.span)
        variable = state.fresh(statement.variable)
        level = _level(variable, start, stop, step.constant, state)
        carried_names = sorted(n for n in assigned(statement.body, self.program) if n in state.env)
        for name in carried_names:
            self.materialized(name, state.env[name])
        self.strengthen(statement, guards, level, carried_names)
        before = dict(state.env)
        frame = self.enter(level, carried_names)
        inner = {name: state.env[name].tensor for name in carried_names}
        self.inside(statement, guards, level)
        state.frames.pop()
        carried = []
        for name in carried_names:
            old, new = before[name], state.env[name]
            first, entered = old.tensor, inner[name]
            next_ = new.tensor
            assert first is not None, "internal: a carried tensor has a value before the loop"
            assert entered is not None, "internal: a carried tensor has a value in the loop"
            assert next_ is not None, "internal: a carried tensor has a value after an iteration"
            result = state.tensor(old.label, new.dtype, new.shape)
            carried.append(Carried(initial=first, inner=entered, next=next_, result=result))
            state.env[name] = replace(new, tensor=result, home=old.home)
        carried += self.close_flags(frame)
        for name in [n for n in state.env if n not in before]:
            del state.env[name]
            state.dead.add(name)
        loop = Loop(
            variable=variable,
            start=start,
            stop=stop,
            step=step.constant,
            body=tuple(frame.ops),
            carried=tuple(carried),
            span=statement.span,
        )
        state.emit(loop)
        state.settle(frame)

    def enter(self, level: LoopLevel, carried_names: Sequence[str]) -> Frame:
        """Opens the loop's frame; carried variables get their inner tensors."""
        state = self.state
        frame = Frame(level)
        state.frames.append(frame)
        for name in carried_names:
            variable = state.env[name]
            tensor = state.tensor(variable.label, variable.dtype, variable.shape)
            state.env[name] = replace(variable, tensor=tensor)
        return frame

    def inside(self, statement: ForLoop, guards: tuple[Expression, ...], level: LoopLevel) -> None:
        shadowed = self.loops.get(statement.variable)
        self.loops[statement.variable] = affine(level.range.name)
        self.block(statement.body, guards)
        del self.loops[statement.variable]
        if shadowed is not None:
            self.loops[statement.variable] = shadowed

    def strengthen(
        self, statement: ForLoop, guards: tuple[Expression, ...], level: LoopLevel, carried_names: Sequence[str]
    ) -> None:
        """Gives weak 0-d variables that the loop assigns the type of their first strong assignment, found by walking the body on trial."""
        if not any(self.state.env[name].weak for name in carried_names):
            return
        real = self.state
        while True:
            self.state = real.fork()
            self.enter(level, carried_names)
            self.inside(statement, guards, level)
            found = {name: self.state.env[name] for name in carried_names}
            self.state = real
            changed = [
                name
                for name in carried_names
                if (found[name].dtype, found[name].weak) != (real.env[name].dtype, real.env[name].weak)
            ]
            if not changed:
                return
            for name in changed:
                variable = real.env[name]
                assert variable.tensor is not None, "internal: a weak variable has a value"
                tensor = real.tensor(name, found[name].dtype, ())
                value = Typed(Read(variable.tensor.name, (), variable.dtype), variable.weak)
                element = stored(value, found[name].dtype, name=name, span=statement.span)
                real.emit(fill(tensor, element, statement.span))
                real.env[name] = replace(variable, tensor=tensor, dtype=found[name].dtype, weak=found[name].weak)

    def close_flags(self, frame: Frame) -> list[Carried]:
        """Carries the flags of computed gathers out of a finished loop."""
        carried = []
        for number, (initial, inner) in frame.flags.items():
            flag = self.state.flags[number]
            final = flag.tensors.pop()
            result = self.state.tensor("out_of_range", final.dtype, (), final.label)
            carried.append(Carried(initial=initial, inner=inner, next=final, result=result))
            flag.tensors[-1] = result
        return carried

    # -- other programs -------------------------------------------------------------------------------------------

    def call(self, statement: CallProgram, guards: tuple[Expression, ...]) -> None:
        """Walks the callee with its parameters bound to the caller's values; what it writes to a parameter, the caller's variable gets."""
        if guards:
            raise EinsumSyntaxError(
                "another program cannot be called under an `if`",
                span=statement.span,
                hint="call it outside, and use its result under the `if`",
            )
        state, callee = self.state, self.program.programs[statement.callee]
        if len(statement.args) != len(callee.parameters):
            raise ShapeError(
                f"{callee.name} takes {len(callee.parameters)} arguments, and {len(statement.args)} are given",
                span=statement.span,
            )
        bound, arguments, sizes = self.bind(callee, statement)
        outer_env, outer_dead = state.env, state.dead
        state.env, state.dead = dict(bound), set()
        inside = _Walker(callee, state, sizes)
        inside.block(callee.body, ())
        results = [state.env[name] for name in inside.returned]
        after = state.env
        state.env, state.dead = outer_env, outer_dead
        for parameter, name in arguments.items():
            if after[parameter].tensor != bound[parameter].tensor or after[parameter].home != bound[parameter].home:
                old = state.env[name]
                state.env[name] = replace(after[parameter], key=old.key, label=old.label)
        if len(results) != len(statement.targets):
            raise ShapeError(
                f"{callee.name} returns {len(results)} tensors, and {len(statement.targets)} are assigned",
                span=statement.span,
            )
        for target, value in zip(statement.targets, results, strict=True):
            known = state.env.get(target)
            if known is not None and (known.shape, known.dtype) != (value.shape, value.dtype):
                raise ShapeError(
                    f"{target} is {known.dtype}{list(known.shape)}, and {callee.name} returns {value.dtype}{list(value.shape)}",
                    span=statement.span,
                )
            key = known.key if known is not None else state.fresh(f"{target}#")
            state.env[target] = replace(value, key=key, label=target)

    def bind(
        self, callee: Program, statement: CallProgram
    ) -> tuple[dict[str, Variable], dict[str, str], dict[str, Affine]]:
        """The callee's variables; for tensors passed by name, parameter -> the caller's name; the callee's sizes."""
        env: dict[str, Variable] = {}
        names: dict[str, str] = {}
        types: list[ArgumentType | int | None] = []
        ints: dict[str, Affine] = {}
        written = assigned(callee.body, callee)
        for parameter, arg in zip(callee.parameters, statement.args, strict=True):
            if parameter.is_size:
                value = needs_affine(arg, self.names, role=f"the int argument {parameter.name} of {callee.name}")
                ints[parameter.name] = value
                types.append(value.constant if value.is_constant else None)
                continue
            assert parameter.dtype is not None, "internal: a parameter is a size or has a dtype"
            bare = isinstance(arg, Subscript) and isinstance(arg.tensor, str) and not arg.subscripts
            if bare and isinstance(arg, Subscript) and isinstance(arg.tensor, str):
                variable = self.state.lookup(arg.tensor, arg.span)
                if parameter.name in written and arg.tensor in names.values():
                    raise ShapeError(
                        f"{callee.name} writes to {parameter.name}, and {arg.tensor} is passed twice", span=arg.span
                    )
                if variable.dtype == parameter.dtype or not variable.weak:
                    names[parameter.name] = arg.tensor
                    env[parameter.name] = replace(self.materialized(arg.tensor, variable), label=parameter.name)
                    types.append(ArgumentType(variable.dtype, variable.shape))
                    continue
            body = Body(self.state, self.names, {}, parameter.name)
            scalar = body.value(arg, Path(Scope(self.state.outer)))
            if not scalar.weak and scalar.dtype != parameter.dtype:
                raise DTypeError(
                    f"argument {parameter.name} of {callee.name} has dtype {scalar.dtype}, and is declared {parameter.dtype}",
                    span=arg.span,
                    hint=f"convert it: {parameter.dtype}(..)",
                )
            tensor = self.state.tensor(parameter.name, parameter.dtype, ())
            element = stored(scalar, parameter.dtype, name=parameter.name, span=arg.span)
            self.state.emit(fill(tensor, element, arg.span))
            env[parameter.name] = Variable(
                self.state.fresh(f"{parameter.name}#"), parameter.name, tensor, parameter.dtype, ()
            )
            types.append(ArgumentType(parameter.dtype))
        sizes = bind_sizes(callee, Signature(tuple(types)))
        return env, names, {**sizes, **ints}


def _level(variable: str, start: Affine, stop: Affine, step: int, state: State) -> LoopLevel:
    """The loop as a variable's range."""
    known = {r.name: r for r in state.outer}
    constraint = loop_constraint(variable, start, stop, step)
    first, last = interval(start, known), interval(stop, known)
    if step > 0:
        low, high = first[0], last[1]
    else:
        low, high = (None if last[0] is None else last[0] + 1), (None if first[1] is None else first[1] + 1)
    exact = start.is_constant and stop.is_constant and abs(step) == 1
    return LoopLevel(Range(variable, constraint, low, high, exact), start, stop, step)


def assigned(body: Sequence[Statement], program: Program) -> set[str]:
    """The names that statements assign (declarations make new tensors and do not count)."""
    found: set[str] = set()
    for statement in body:
        match statement:
            case Assign():
                found.add(statement.target)
            case ForLoop():
                found |= assigned(statement.body, program)
            case IfBlock():
                found |= assigned(statement.body, program) | assigned(statement.orelse, program)
            case CallProgram():
                found |= set(statement.targets)
                callee = program.programs[statement.callee]
                written = assigned(callee.body, callee)
                for parameter, arg in zip(callee.parameters, statement.args, strict=False):
                    if parameter.name in written and isinstance(arg, Subscript) and isinstance(arg.tensor, str):
                        found.add(arg.tensor)
            case Declare() | Return():
                pass
            case _:
                assert_never(statement)
    return found


def negation(condition: Expression) -> Expression:
    """`not condition`."""
    return Unary("not", condition, condition.span)

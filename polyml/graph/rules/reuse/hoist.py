"""Equations moved out of loops: those that are the same in every iteration, and sums that depend on the loop only through its variable.

The second kind becomes one equation over all iterations, whose result has a leading dimension for them: an LSTM's input products `x[t, b, k] * w[k, h]`,
matrix times vector in each step, become one contraction ahead of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Expr, Read, Subscript, map_reads, substitute, walk
from polyml.graph.edit import map_equations, map_expressions, protected_names
from polyml.graph.elements import all_elements, elements_read
from polyml.graph.flow import iterations_of
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import equation_reads, estimated_bytes, read_names, results_of, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["hoist"]

_MOST_BYTES = 64 << 20
"""Most memory that the results of all iterations may take, unless the inputs that they come from take as much."""


def hoist(graph: Graph) -> Graph:
    """The graph with equations moved ahead of the loops that they do not need to be in."""
    protected, tensors = protected_names(graph), tensors_of(graph)
    ops = _hoist_block(graph.ops, protected, tensors, graph.context)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _hoist_block(
    ops: tuple[Op, ...], protected: set[str], tensors: dict[str, Tensor], context: isl.Set
) -> tuple[Op, ...]:
    """context: what is known of sizes and of the variables of loops around, where the ops run."""
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            body = _hoist_block(op.body, protected, tensors, context.intersect(iterations_of([op])))
            loop = op if body is op.body else replace(op, body=body)
            ahead, loop = _split(loop, protected, tensors, context)
            result += [*ahead, loop]
        else:
            result.append(op)
    return renewed(ops, result)


def _split(loop: Loop, protected: set[str], tensors: dict[str, Tensor], context: isl.Set) -> tuple[list[Op], Loop]:
    """The equations that can run ahead of the loop, and the loop without them. Where the loop may have no iteration, only those of which every read is in bounds all the same."""
    runs = _runs(loop, context)
    inside = {c.inner.name for c in loop.carried} | {t.name for op in loop.body for t in results_of(op)}
    overwritten = {op.base.name for op in loop.body if isinstance(op, Equation) and op.base is not None}
    overwritten |= {c.initial.name for op in loop.body if isinstance(op, Loop) for c in op.carried}
    ahead: list[Op] = []
    body: list[Op] = []
    expanded: dict[str, _Expansion] = {}
    for original in loop.body:
        op = _use_expansions(original, expanded) if expanded else original
        movable = (
            isinstance(op, Equation)
            and op.result.name not in protected | overwritten
            and not inside & set(read_names(op))
        )
        if movable and isinstance(op, Equation):
            if not _uses_variable(op, loop.variable):
                bare = _without_parameter(op, loop.variable)
                if not (runs or _stays_inside(bare, tensors, context)):
                    body.append(op)
                    continue
                ahead.append(bare)
                inside.discard(op.result.name)
                continue
            expansion = _expand(op, loop, tensors)
            if expansion is not None:
                ahead.append(expansion.equation)
                expanded[op.result.name] = expansion
                tensors[expansion.equation.result.name] = expansion.equation.result
                continue
        body.append(op)
    return (ahead, replace(loop, body=tuple(body))) if ahead else ([], loop)


def _runs(loop: Loop, context: isl.Set) -> bool:
    """Whether the loop has an iteration, whatever the sizes and the loops around are."""
    if loop.start.is_constant and loop.stop.is_constant:
        return len(range(loop.start.constant, loop.stop.constant, loop.step)) > 0
    return bool(context.is_subset(_ahead_of(loop, iterations_of([loop]))))


def _ahead_of(loop: Loop, points: isl.Set) -> isl.Set:
    """What the set, of parameters alone, says without the loop's variable."""
    position = points.find_dim_by_name(isl.dim_type.param, loop.variable)
    return points if position < 0 else points.project_out(isl.dim_type.param, position, 1)


def _stays_inside(equation: Equation, tensors: dict[str, Tensor], context: isl.Set) -> bool:
    """Whether all that it reads, gathers included, is in bounds for all that is known in the context: a program's proofs and checks are about iterations that there are."""
    return all(
        elements_read(equation, read).intersect_params(context).is_subset(all_elements(tensors[read.tensor]))
        for read in equation_reads(equation)
    )


def _without_parameter(equation: Equation, variable: str) -> Equation:
    """The equation, which does not use the variable, with domains that do not mention it."""

    def bare(points: isl.Set) -> isl.Set:
        position = points.find_dim_by_name(isl.dim_type.param, variable)
        return points if position < 0 else points.project_out(isl.dim_type.param, position, 1)

    instances = None if equation.instances is None else bare(equation.instances)
    return replace(equation, domain=bare(equation.domain), instances=instances)


def _uses_variable(equation: Equation, variable: str) -> bool:
    for points in (equation.domain, equation.instances):
        position = -1 if points is None else points.find_dim_by_name(isl.dim_type.param, variable)
        if points is not None and position >= 0 and points.involves_dims(isl.dim_type.param, position, 1):
            return True
    places: list[Affine] = [s for s in equation.target if isinstance(s, Affine)]
    expressions: list[Expr] = [equation.body, *(s for s in equation.target if not isinstance(s, Affine))]
    for expression in expressions:
        for node in walk(expression):
            if isinstance(node, Read):
                places += [s for s in node.subscripts if isinstance(s, Affine)]
            elif hasattr(node, "affine"):
                places.append(node.affine)
    return any(variable in place.variables() for place in places)


# -- one equation over all iterations -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Expansion:
    """`equation` makes the results of all iterations; that of the current one is at `iteration` in its first dimension."""

    equation: Equation
    iteration: Affine


def _use_expansions(op: Op, expanded: dict[str, _Expansion]) -> Op:
    def change(read: Read) -> Read:
        expansion = expanded.get(read.tensor)
        if expansion is None:
            return read
        return Read(expansion.equation.result.name, (expansion.iteration, *read.subscripts), read.dtype)

    (changed,) = map_equations((op,), lambda eq: map_expressions(eq, lambda expr: map_reads(expr, change)))
    return changed


def _expand(equation: Equation, loop: Loop, tensors: dict[str, Tensor]) -> _Expansion | None:
    """The equation over all iterations, if that is a contraction worth having and its memory is reasonable."""
    if not (loop.start.is_constant and loop.stop.is_constant) or not equation.reduced or equation.base is not None:
        return None
    count = len(range(loop.start.constant, loop.stop.constant, loop.step))
    sources = dict.fromkeys(read.tensor for read in equation_reads(equation))
    size = count * estimated_bytes(equation.result)
    if count < 2 or size > max(_MOST_BYTES, 2 * sum(estimated_bytes(tensors[name]) for name in sources)):
        return None
    if not _reuses_an_operand(equation, loop.variable):
        return None
    index = fresh_name(f"{loop.variable}_", equation.indices)
    value = affine(index) * loop.step + loop.start
    name = fresh_name(f"{equation.result.name}_all", tensors)
    result = Tensor(name, equation.result.dtype, (affine(count), *equation.result.shape), equation.result.label)
    at = {loop.variable: value}

    def place(subscript: Subscript) -> Subscript:
        return subscript.substitute(at) if isinstance(subscript, Affine) else substitute(subscript, at)

    left = equation.left
    wide = replace(
        equation,
        result=result,
        indices=(index, *equation.indices),
        domain=_over_iterations(equation.domain, loop, count, index, equation.indices).set_tuple_name(name),
        target=(affine(index), *map(place, equation.target)),
        body=substitute(equation.body, at),
        instances=None
        if equation.instances is None
        else _over_iterations(equation.instances, loop, count, index, left).set_tuple_name(name),
    )
    distance = affine(loop.variable) - loop.start if loop.step > 0 else loop.start - affine(loop.variable)
    return _Expansion(wide, distance // abs(loop.step))


def _reuses_an_operand(equation: Equation, variable: str) -> bool:
    """True when some operand is the same in all iterations: then doing them together reads it once."""
    for read in equation_reads(equation):
        places = [s for s in read.subscripts if isinstance(s, Affine)]
        if read.subscripts and not any(variable in place.variables() for place in places):
            return True
    return False


def _over_iterations(domain: isl.Set, loop: Loop, count: int, index: str, indices: Sequence[str]) -> isl.Set:
    """The domains of all iterations as one set with the iteration number in front (unnamed tuple)."""
    domain = domain.reset_tuple_id()
    position = domain.find_dim_by_name(isl.dim_type.param, loop.variable)
    if position < 0:
        domain = domain.insert_dims(isl.dim_type.set, 0, 1)
    else:
        domain = domain.move_dims(isl.dim_type.set, 0, isl.dim_type.param, position, 1)
    dims = [index, *(f"x{d}'" for d in range(len(indices)))]
    head = parameters_text(parameters_of(domain))
    value = (affine(index) * loop.step + loop.start).isl_text()
    if position >= 0:
        shift = isl.MultiAff(f"{head}{{ [{', '.join(dims)}] -> [{', '.join([value, *dims[1:]])}] }}")
        domain = domain.preimage_multi_aff(shift)
    return domain.intersect(isl.Set(f"{head}{{ [{', '.join(dims)}] : 0 <= {index} < {count} }}"))

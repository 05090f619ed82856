"""Recurrences that run alike in each iteration of the loops around them: once, ahead of those loops.

The factors of a tridiagonal solver, `p[i, j] = -c / (a * p[i, j - 1] + b)` for each row i and in each step of time, are the same for every row and step. Which loops the value of an instance
depends on follows from what it reads, exactly (graph/flow.py, graph/webs.py): a recurrence depends on those that its own subscripts and operands use, and on what its sources depend on. What is left is a smaller
recurrence over a smaller tensor: `p[j]`, made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Const, Read, map_reads
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_equations, map_expressions, rename_uses
from polyml.graph.flow import Place, iterations_of, points_of
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.traverse import read_names, tensors_of
from polyml.graph.webs import Web, independent_webs
from polyml.new_names import fresh_name

__all__ = ["recur_once"]


def recur_once(graph: Graph) -> Graph:
    """The graph with such recurrences ahead of the outermost loop that they are in."""
    tensors = tensors_of(graph)
    used = {tensor.name for tensor in graph.outputs}
    used |= {item.final.name for item in graph.inputs if item.final is not None}
    made: list[Op] = []
    for op in reversed(graph.ops):
        ahead: list[Op] = []
        new: Op = op
        if isinstance(op, Loop):
            new, ahead = _without_recurrences(op, used, tensors)
        used.update(read_names(op))
        made += [new, *reversed(ahead)]
    if len(made) == len(graph.ops):
        return graph
    return remove_dead(replace(graph, ops=tuple(reversed(made))))


def _without_recurrences(loop: Loop, used: set[str], tensors: dict[str, Tensor]) -> tuple[Loop, list[Op]]:
    ahead: list[Op] = []
    outer = loop
    for web in independent_webs(outer, used):
        ops, result = _alone(outer, web, tensors)
        ahead += ops
        loop = _using(loop, web, result)
    return loop, ahead


def _alone(loop: Loop, web: Web, tensors: dict[str, Tensor]) -> tuple[list[Op], Tensor]:
    """The ops that lead it once, and their result."""
    model = web.writers[0].equation.result
    shape = tuple(model.shape[d] for d in web.dimensions)

    def version() -> Tensor:
        tensor = Tensor(fresh_name(f"{model.label}_once", tensors), model.dtype, shape, model.label)
        tensors[tensor.name] = tensor
        return tensor

    first = version()
    value = web.start.body if web.start is not None else Const(0, model.dtype)
    by_name = {writer.equation.result.name: writer for writer in web.writers}

    def led(ops: Sequence[Op], current: Tensor) -> tuple[list[Op], Tensor]:
        made: list[Op] = []
        for op in ops:
            if isinstance(op, Equation) and op.result.name in by_name:
                result = version()
                made.append(_smaller(by_name[op.result.name], web, current, result))
                current = result
            elif isinstance(op, Loop):
                new, current = led_loop(op, current)
                made += new
        return made, current

    def led_loop(op: Loop, current: Tensor) -> tuple[list[Op], Tensor]:
        if not web.keeps(op):
            return led(op.body, current)
        inner, result = version(), version()
        body, last = led(op.body, inner)
        carried = (Carried(current, inner, last, result),)
        return [replace(op, body=tuple(body), carried=carried)], result

    ops, result = led_loop(loop, first)
    return [fill(first, value, web.writers[0].equation.span), *ops], result


def _smaller(writer: Place, web: Web, current: Tensor, result: Tensor) -> Equation:
    """The writer's equation for one iteration of the loops that are left out, as an update of `current`."""
    equation, kept = writer.equation, web.kept[writer.equation.result.name]
    own = {access.read for access in web.reads if access.place is writer}

    def change(read: Read) -> Read:
        return Read(current.name, web.element(read.subscripts), read.dtype) if read in own else read

    return replace(
        equation,
        result=result,
        indices=tuple(index for index in equation.indices if index in kept),
        domain=_smaller_domain(writer, web).set_tuple_name(result.name),
        target=web.element(equation.target),
        body=map_reads(equation.body, change),
        base=current,
        instances=None,
    )


def _smaller_domain(writer: Place, web: Web) -> isl.Set:
    """All points of the writer's own indices that are kept, over the iterations of the loops that are left out."""
    points, loops = points_of(writer).reset_tuple_id(), len(writer.loops)
    for d, name in reversed(list(enumerate(writer.dims))):
        if d < loops and web.keeps(writer.loops[d]):
            last = points.dim(isl.dim_type.param)
            points = points.move_dims(isl.dim_type.param, last, isl.dim_type.set, d, 1)
            points = points.set_dim_name(isl.dim_type.param, last, name)
        elif d < loops or name not in web.kept[writer.equation.result.name]:
            points = points.project_out(isl.dim_type.set, d, 1)
    return points.gist_params(iterations_of([loop for loop in writer.loops if web.keeps(loop)]))


def _using(loop: Loop, web: Web, result: Tensor) -> Loop:
    """The loop without the writers, and with the smaller tensor where their elements were read."""
    replaced = {
        (access.place.equation.result.name, access.read): Read(
            result.name, web.element(access.read.subscripts), result.dtype
        )
        for access in web.reads
    }
    bases: dict[str, Tensor] = {}
    for writer in web.writers:
        assert writer.equation.base is not None, "internal: an update without a base"
        bases[writer.equation.result.name] = writer.equation.base
    for name in bases:
        while (base := bases.get(bases[name].name)) is not None:
            bases[name] = base

    def change(equation: Equation) -> Equation:
        def read_there(read: Read) -> Read:
            return replaced.get((equation.result.name, read), read)

        return map_expressions(equation, lambda expr: map_reads(expr, read_there))

    (changed,) = rename_uses(_removed(map_equations((loop,), change), set(bases)), bases)
    assert isinstance(changed, Loop), "internal: a loop stays one"
    return changed


def _removed(ops: tuple[Op, ...], names: set[str]) -> tuple[Op, ...]:
    left = (op for op in ops if not (isinstance(op, Equation) and op.result.name in names))
    return tuple(replace(op, body=_removed(op.body, names)) if isinstance(op, Loop) else op for op in left)

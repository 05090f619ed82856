"""How the steps of a loop make a tensor's next value of the one before: by a few updates in place, one after the other, or by copies.

Steps that end with a copy of the whole tensor, `v[i] = ..u..; u[i] = v[i]`, update u in place as well: what v has been before a step is what u has been, or nobody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read
from polyml.graph.edit import rename_uses
from polyml.graph.elements import all_elements, elements_at, elements_read
from polyml.graph.ir import Carried, Equation, Loop, Op, Tensor
from polyml.graph.traverse import equation_reads
from polyml.sets.affine import Affine

__all__ = ["is_copy", "is_finished", "moves_on", "updates_of", "without_copies", "written"]


def updates_of(carried: Carried, loop: Loop) -> tuple[Equation, ...]:
    """What makes the tensor's next value, in order, each of them in place of the one before; empty where it is made in another way, or at places that move on with the steps."""
    by_result = {op.result.name: op for op in loop.body if isinstance(op, Equation)}
    updates: list[Equation] = []
    name = carried.next.name
    while name != carried.inner.name:
        update = by_result.get(name)
        if update is None or update.base is None or update.reduce is not None or update.only_if is not None:
            return ()
        if moves_on(update, loop.variable):
            return ()
        updates.append(update)
        name = update.base.name
    bases = {carried.inner.name, *(update.result.name for update in updates)}
    alone = sum(isinstance(op, Equation) and op.base is not None and op.base.name in bases for op in loop.body)
    return tuple(reversed(updates)) if alone == len(updates) else ()


def moves_on(update: Equation, variable: str) -> bool:
    """Whether the elements that are written depend on the loop's variable (other than that there are iterations)."""
    if any(not isinstance(place, Affine) or variable in place.variables() for place in update.target):
        return True
    position = update.domain.find_dim_by_name(isl.dim_type.param, variable)
    return position >= 0 and bool(update.domain.involves_dims(isl.dim_type.param, position, 1))


def is_copy(equation: Equation) -> bool:
    """Whether it copies a tensor whole, in place."""
    plain = equation.reduce is None and equation.base is None and equation.is_plain and equation.only_if is None
    return plain and isinstance(equation.body, Read) and equation.body.subscripts == equation.target


def written(updates: Sequence[Equation]) -> isl.Set:
    """The elements that updates write."""
    sets = [elements_at(update.domain, update.left, update.target) for update in updates]
    found = sets[0]
    for more in sets[1:]:
        found = found.union(more)
    return found


def is_finished(updates: Sequence[Equation], equations: Sequence[Equation]) -> bool:
    """Whether what equations read between two updates has been written by then, if the step writes it at all: what the place had before does not matter then."""
    versions = {update.result.name: number for number, update in enumerate(updates[:-1], 1)}
    for equation in equations:
        for read in equation_reads(equation):
            number = versions.get(read.tensor)
            if number is None:
                continue
            late = written(updates[number:]).subtract(written(updates[:number]))
            if not elements_read(equation, read).is_disjoint(late):
                return False
    return True


def without_copies(loop: Loop, ahead: Mapping[str, Equation]) -> tuple[Loop, dict[str, Tensor]]:
    """The loop without tensors that steps copy whole; and what those are after a step, by the names of their results.

    Args:
        ahead: equations by their results' names, those before the loop among them.
    """
    same: dict[str, Tensor] = {}
    loop = _without_aliases(loop)
    for carried in loop.carried:
        source = _copied(carried, loop, ahead)
        if source is None:
            continue
        names = {carried.next.name: source.next, source.inner.name: carried.inner}
        body = tuple(op for op in loop.body if not (isinstance(op, Equation) and op.result == carried.next))
        kept = tuple(
            replace(c, next=source.next) if c.inner == carried.inner else c for c in loop.carried if c is not source
        )
        loop = replace(loop, body=rename_uses(body, names), carried=kept)
        same[source.result.name] = carried.result
    return loop, same


def _without_aliases(loop: Loop) -> Loop:
    """The loop where nothing reads a copy of what a step begins with."""
    inner = {carried.inner.name: carried.inner for carried in loop.carried}
    kept = {carried.next.name for carried in loop.carried}
    kept |= {op.base.name for op in loop.body if isinstance(op, Equation) and op.base is not None}
    names: dict[str, Tensor] = {}
    body: list[Op] = []
    for op in loop.body:
        if isinstance(op, Equation) and is_copy(op) and op.result.name not in kept:
            assert isinstance(op.body, Read), "internal: a copy that computes"
            if op.body.tensor in inner:
                names[op.result.name] = inner[op.body.tensor]
                continue
        body.append(op)
    return replace(loop, body=rename_uses(tuple(body), names)) if names else loop


def _copied(carried: Carried, loop: Loop, ahead: Mapping[str, Equation]) -> Carried | None:
    """The other tensor that the loop carries whose next value is copied to this one's, where both may be one."""
    equations = [op for op in loop.body if isinstance(op, Equation)]
    copy = next((e for e in equations if e.result.name == carried.next.name), None)
    if copy is None or not is_copy(copy) or not isinstance(copy.body, Read):
        return None
    name = copy.body.tensor
    sources = [c for c in loop.carried if c.next.name == name]
    both = [c for c in loop.carried if c.next.name in (name, copy.result.name)]
    if len(sources) != 1 or len(both) != 2 or sources[0].inner.shape != carried.inner.shape:
        return None
    (source,) = sources
    updates = updates_of(source, loop)
    if not updates or any(e.base is not None and e.base.name == carried.inner.name for e in equations):
        return None
    if _origin(source.initial.name, ahead) == _origin(carried.initial.name, ahead):
        return source
    if any(read.tensor == source.inner.name for e in equations for read in equation_reads(e)):
        return None
    whole = bool(all_elements(source.inner).is_subset(written(updates)))
    return source if whole and is_finished(updates, equations) else None


def _origin(name: str, ahead: Mapping[str, Equation]) -> str:
    """What a tensor is a copy of, or itself."""
    while (equation := ahead.get(name)) is not None and is_copy(equation):
        assert isinstance(equation.body, Read), "internal: a copy that computes"
        name = equation.body.tensor
    return name

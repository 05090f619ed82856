"""What holds where a condition does: which version of a function runs, and that rows begin where vectors do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyml.codegen.llvm.ir import Value
from polyml.codegen.llvm.state import State
from polyml.expressions import Apply, Const, Expr, IndexValue, walk
from polyml.sets.affine import affine

__all__ = ["is_of_sizes", "version", "zero_lead"]


@contextmanager
def version(state: State, condition: Value | None) -> Iterator[None]:
    """In nodes that run under the condition only, which is known from the start (None: it is not)."""
    if condition is not None:
        state.versions.append(condition)
    yield
    if condition is not None:
        state.versions.pop()


def is_of_sizes(state: State, condition: Expr) -> bool:
    """Whether the condition is about sizes, and nothing else."""
    leads = {lead.name for lead in state.leads}
    for node in walk(condition):
        if isinstance(node, IndexValue):
            if not all(name in state.nest.variables and name not in leads for name in node.affine.variables()):
                return False
        elif not isinstance(node, Apply | Const):
            return False
    return True


@contextmanager
def zero_lead(state: State, condition: Expr) -> Iterator[None]:
    """Where `lead == 0` is the condition, addresses are compared as if the lead were 0."""
    grids, names = state.nest.grids, {lead.name for lead in state.leads}
    match condition:
        case Apply(op="eq", args=(IndexValue(affine=value), Const(value=0))) if value.name in names:
            assert value.name is not None, "internal: a lead without a name"
            grids[value.name] = (affine(0), 0)
            yield
            del grids[value.name]
        case _:
            yield

"""How a loop is run: in parallel, in lanes, unrolled, unrolled and jammed. A mark above the loop; the loop passes carry it out."""

from __future__ import annotations

from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import find_loop, whole_number
from polyml.schedule.transforms.nest import with_tree
from polyml.schedule.transforms.nodes import insert_mark

__all__ = ["parallelize", "sequential", "unroll", "unroll_and_jam", "vectorize"]


def parallelize(schedule: Schedule, statement: str, loop: str) -> Schedule:
    """The loop's iterations are shared by the threads."""
    return _marked(schedule, statement, loop, "parallel")


def vectorize(schedule: Schedule, statement: str, loop: str, vectors: int = 1) -> Schedule:
    """Lanes run along the loop, `vectors` vectors at once. Reductions that it carries get an accumulator per lane."""
    return _marked(schedule, statement, loop, f"vector:{whole_number(vectors, 'vectors')}")


def unroll(schedule: Schedule, statement: str, loop: str, factor: int) -> Schedule:
    """`factor` copies of the body per iteration, one after another; the loop goes when it is no longer than that."""
    return _marked(schedule, statement, loop, f"unroll:{whole_number(factor, 'factor')}")


def unroll_and_jam(schedule: Schedule, statement: str, loop: str, factor: int) -> Schedule:
    """`factor` copies of the body side by side, the loops inside shared: what the copies read in common stays in registers."""
    return _marked(schedule, statement, loop, f"jam:{whole_number(factor, 'factor')}")


def sequential(schedule: Schedule, statement: str, loop: str) -> Schedule:
    """The loop without its mark."""
    return _marked(schedule, statement, loop, None)


def _marked(schedule: Schedule, statement: str, loop: str, mark: str | None) -> Schedule:
    found = find_loop(schedule, statement, loop)
    node = found.node if found.mark is None else found.top.delete()
    return with_tree(schedule, node if mark is None else insert_mark(node, mark))

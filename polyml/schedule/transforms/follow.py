"""A loop that runs along with the one right before it: the iterations of the second that have one in the first move into that, whatever order they were in."""

from __future__ import annotations

import islpy as isl

from polyml.schedule.transforms.nodes import Loop, graft, insert_loops, insert_sequence, loops_of

__all__ = ["join_follower"]


def join_follower(
    sequence: isl.ScheduleNode, position: int, row: isl.UnionPwAff, along: isl.UnionSet
) -> isl.ScheduleNode:
    """The sequence with a part of child `position + 1` in the loop of child `position`, behind the body of that; what is left of it follows. Both are single-member bands without marks.

    Rewrite: sequence(i(S), j(T)) -> sequence(i: sequence(S, T), j(T elsewhere)).

    Args:
        row: of the second loop's instances, when each is to run. along: those that move; the rest may be empty.
    """
    filters = [sequence.child(k).filter_get_filter() for k in range(sequence.n_children())]
    bodies = [sequence.child(k).child(0) for k in range(sequence.n_children())]
    reach = bodies[position + 1].get_domain()
    rest = reach.subtract(along).gist(reach).coalesce()
    inside = along.gist(reach).coalesce()
    is_whole = reach.is_subset(along)
    moved = filters[position + 1] if is_whole else inside.intersect(filters[position + 1].universe())
    (first,) = loops_of(bodies[position])
    parts = [*filters[:position], filters[position].union(moved)]
    parts += [] if is_whole else [rest.intersect(filters[position + 1].universe())]
    parts += filters[position + 2 :]
    kept: list[isl.ScheduleNode | None] = [*bodies[:position], None]
    kept += [] if is_whole else [bodies[position + 1]]
    kept += bodies[position + 2 :]
    leaf = sequence.cut()
    node = insert_sequence(leaf, parts) if len(parts) > 1 else leaf
    for k, body in enumerate(kept):
        place = node.child(k).child(0) if len(parts) > 1 else node
        if body is None:
            loop = Loop(first.row.union_add(row.intersect_domain(moved)))
            place = insert_sequence(insert_loops(place, [loop]).child(0), [filters[position], moved])
            for half, source in enumerate((bodies[position], bodies[position + 1])):
                place = graft(place.child(half).child(0), source.child(0)).parent().parent()
            place = place.parent()
        else:
            place = graft(place, body)
        node = place.parent().parent() if len(parts) > 1 else place
    return node

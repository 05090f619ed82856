"""Transformations of schedules, each in the file of its idea. They move, they do not judge: `legality.check` proves what comes out.

`nodes` has the moves on the nodes of a tree, which the strategy composes. The other files have the transformations of whole schedules, which name a loop by a
statement and the loop's name (`loops`), `Schedule -> Schedule`; polyml.user_schedule offers them to users, a proof after each.
"""

from polyml.schedule.transforms.nodes import (
    Loop,
    around,
    distribute_band,
    graft,
    insert_band,
    insert_loops,
    insert_mark,
    insert_sequence,
    loops_of,
    merge_with_child,
    nest_loops,
    quotient_loop,
    remainder_loop,
    single_members,
    spliced,
    split_band,
    tile_loop,
)

__all__ = [
    "Loop",
    "around",
    "distribute_band",
    "graft",
    "insert_band",
    "insert_loops",
    "insert_mark",
    "insert_sequence",
    "loops_of",
    "merge_with_child",
    "nest_loops",
    "quotient_loop",
    "remainder_loop",
    "single_members",
    "spliced",
    "split_band",
    "tile_loop",
]

"""A user's hand on a schedule: every transformation by name, a proof after each, printed as a tree or as loops at any step.

An object is one region's schedule and does not change: each method returns the next one, or refuses with the dependence that it would break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from polyml.codegen.generate import generate
from polyml.codegen.printer import loops_text as code_text
from polyml.errors import IllegalScheduleError
from polyml.records import dataclass
from polyml.runtime.dispatch import COMPILE_LOCK
from polyml.schedule.coincidence import with_coincidence
from polyml.schedule.files import read_schedule, schedule_yaml
from polyml.schedule.isl_scheduler import tree_from_written_order
from polyml.schedule.legality import check
from polyml.schedule.restore import contracted_as_before
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage import contract_storage, expanded, storage_text
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.transforms import fusion, marks, pieces, privatize, reorder, rows, tile, wavefront
from polyml.schedule.transforms.loops import LARGEST, largest_number, loops_around, loops_text
from polyml.schedule.transforms.nodes import single_members
from polyml.schedule.tree import Kind, kind_of, members, nodes, print_tree, tree_html
from polyml.schedule.window import slide_storage
from polyml.shown import preformatted

__all__ = ["UserSchedule", "user_schedule"]


def user_schedule(schedule: Schedule, *, precise: bool) -> UserSchedule:
    """The handle on a schedule of the compiler's. precise: reductions keep their order."""
    with COMPILE_LOCK:
        # Values are in the arrays in any order of ours, as the proof has them.
        plain = replace(schedule, tree=single_members(schedule.tree), time_lanes=None, worth=(), small=(), apart=())
        if schedule.any_call is not None:  # no other version stands in for it where it is not worth it
            plain = replace(plain, scop=replace(plain.scop, context=schedule.any_call))
        return UserSchedule(replace(plain, tree=with_coincidence(plain)), precise)


@dataclass(frozen=True, slots=True)
class UserSchedule:
    """A legal schedule of one region. Statements are called as `loops` and `str` show them; loops by the statement's name and their own.

    Every transformation raises IllegalScheduleError when it would break a dependence (`.violation` has the witness pair), and TransformError when there is no
    such statement or loop, or the tree is not of the form that it needs.
    """

    schedule: Schedule
    precise: bool

    # -- looking at it ---------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The region's name."""
        return self.schedule.scop.name

    @property
    def statements(self) -> tuple[str, ...]:
        """Names of the statements, in written order."""
        return tuple(self.schedule.scop.statements)

    def loops_of(self, statement: str) -> tuple[str, ...]:
        """Names of the loops around a statement, outermost first."""
        with COMPILE_LOCK:
            return tuple(loop.name for loop in loops_around(self.schedule, statement))

    def loops(self) -> str:
        """The code that the schedule stands for, as loops with their marks (before the loop passes carry these out)."""
        with COMPILE_LOCK:
            return code_text(generate(self.schedule, name=self.name))

    def __str__(self) -> str:
        with COMPILE_LOCK:
            tree = print_tree(self.schedule.tree, self.schedule.scop)
            return "\n".join([tree, loops_text(self.schedule), *storage_text(self.schedule)])

    def __repr__(self) -> str:
        return f"<schedule of {self.name}: {', '.join(self.statements)}>"

    def _repr_html_(self) -> str:
        with COMPILE_LOCK:
            rest = "\n".join([loops_text(self.schedule), *storage_text(self.schedule)])
            return tree_html(self.schedule.tree, self.schedule.scop) + preformatted(rest)

    # -- tiles and order ---------------------------------------------------------------------------------------------------------------

    def written(self) -> UserSchedule:
        """The order as written, without marks, with all arrays in full: the place to start by hand from."""
        with COMPILE_LOCK:
            plain = replace(expanded(self.schedule), tree=tree_from_written_order(self.schedule.scop), notes=())
            return self._proved(replace(plain, tree=single_members(plain.tree)))

    def tile(self, statement: str, /, **sizes: int | Sequence[int]) -> UserSchedule:
        """Tile loops over the named loops, above the outermost of them: `tile("S", i=32, j=64)`; several levels: `tile("S", i=(64, 8), j=(64, 8))`."""
        return self._step(lambda s: tile.tile(s, statement, sizes))

    def split(self, statement: str, loop: str, size: int) -> UserSchedule:
        """One loop as two: blocks, and inside a block."""
        return self._step(lambda s: tile.split(s, statement, loop, size))

    def interchange(self, statement: str, first: str, second: str) -> UserSchedule:
        """Two loops of a perfect nest exchanged."""
        return self._step(lambda s: reorder.interchange(s, statement, first, second))

    def reorder(self, statement: str, *loops: str) -> UserSchedule:
        """The named loops of a perfect nest in the order given."""
        return self._step(lambda s: reorder.reorder(s, statement, *loops))

    def fuse(self, first: str, second: str, *, depth: int = 1) -> UserSchedule:
        """The outermost loops that two statements do not share made one, `depth` times."""
        return self._step(lambda s: fusion.fuse(s, first, second, depth=depth))

    def distribute(self, statement: str, loop: str) -> UserSchedule:
        """What stands inside the loop gets a loop each."""
        return self._step(lambda s: fusion.distribute(s, statement, loop))

    def split_init(self, statement: str) -> UserSchedule:
        """The initialization of a reduction in a nest of its own."""
        return self._step(lambda s: fusion.split_init(s, statement))

    # -- what loops compute --------------------------------------------------------------------------------------------------------------

    def shift(self, statement: str, /, **distances: int) -> UserSchedule:
        """The statement that many iterations later: `shift("S", i=1)`."""
        return self._step(lambda s: rows.shift(s, statement, distances))

    def scale(self, statement: str, loop: str, factor: int) -> UserSchedule:
        """The loop's values times a factor, so that shifts fit between."""
        return self._step(lambda s: rows.scale(s, statement, loop, factor))

    def skew(self, statement: str, loop: str, by: str, factor: int = 1) -> UserSchedule:
        """The loop `factor` iterations later per iteration of loop `by`."""
        return self._step(lambda s: rows.skew(s, statement, loop, by, factor))

    def reverse(self, statement: str, loop: str) -> UserSchedule:
        """The loop from last to first."""
        return self._step(lambda s: rows.reverse(s, statement, loop))

    def wavefront(self, statement: str, *loops: str) -> UserSchedule:
        """A front over the named loops (tile loops, mostly) in the place of the outermost."""
        return self._step(lambda s: wavefront.wavefront(s, statement, *loops))

    def diamond(self, statement: str, time: str, space: str, *, size: int, slope: int = 1) -> UserSchedule:
        """Diamond tiles over a time and a space loop, all of a front starting at once."""
        return self._step(lambda s: wavefront.diamond(s, statement, time, space, size=size, slope=slope))

    # -- how loops run ---------------------------------------------------------------------------------------------------------------------

    def parallelize(self, statement: str, loop: str) -> UserSchedule:
        """The loop's iterations shared by the threads."""
        return self._step(lambda s: marks.parallelize(s, statement, loop))

    def vectorize(self, statement: str, loop: str, vectors: int = 1) -> UserSchedule:
        """Lanes along the loop, `vectors` vectors at once."""
        return self._step(lambda s: marks.vectorize(s, statement, loop, vectors))

    def unroll(self, statement: str, loop: str, factor: int) -> UserSchedule:
        """Copies of the body one after another."""
        return self._step(lambda s: marks.unroll(s, statement, loop, factor))

    def unroll_and_jam(self, statement: str, loop: str, factor: int) -> UserSchedule:
        """Copies of the body side by side, inner loops shared."""
        return self._step(lambda s: marks.unroll_and_jam(s, statement, loop, factor))

    def sequential(self, statement: str, loop: str) -> UserSchedule:
        """The loop without its mark."""
        return self._step(lambda s: marks.sequential(s, statement, loop))

    def privatize(self, statement: str, loop: str) -> UserSchedule:
        """A partial result per iteration of the loop, combined afterwards, so that the loop carries nothing (rfactor)."""
        return self._step(lambda s: privatize.privatize(s, statement, loop))

    # -- domains -----------------------------------------------------------------------------------------------------------------------------

    def index_set_split(self, statement: str, loop: str, at: int | str) -> UserSchedule:
        """The loop's iterations below `at`, then the others: parts `S@0` and `S@1`."""
        return self._step(lambda s: pieces.index_set_split(s, statement, loop, at))

    def separate(self, statement: str, *loops: str) -> UserSchedule:
        """Full tiles (part 0) apart from partial ones (part 1)."""
        return self._step(lambda s: pieces.separate(s, statement, *loops))

    # -- storage -----------------------------------------------------------------------------------------------------------------------------

    def contract(self, *arrays: str) -> UserSchedule:
        """Local arrays (all without names) just as large as one visit of the place where they live needs. Later transformations find the place anew."""
        with COMPILE_LOCK:
            return self._proved(contract_storage(self.schedule, arrays or None))

    def slide(self, array: str, *sizes: int) -> UserSchedule:
        """A local array in a sliding window whose places its elements take in turns (modulo its extents); without sizes as small as lifetimes allow."""
        with COMPILE_LOCK:
            return self._proved(slide_storage(self.schedule, array, sizes or None))

    # -- proofs and files --------------------------------------------------------------------------------------------------------------------

    def check(self) -> UserSchedule:
        """The proof again: every instance once, every dependence respected, storage sufficient. *Returns* itself."""
        with COMPILE_LOCK:
            _prove(self.schedule, self.precise)
            return self

    def text(self) -> str:
        """The tree in isl's YAML."""
        with COMPILE_LOCK:
            return schedule_yaml(self.schedule)

    def save(self, path: str | Path) -> None:
        """Writes `text` to a file."""
        Path(path).write_text(self.text())

    def with_tree(self, text: str) -> UserSchedule:
        """The region under another tree, in isl's YAML, which is proved first.

        Raises:
            IllegalScheduleError: it breaks a dependence, or is no tree over the region's instances.
        """
        with COMPILE_LOCK:
            return self._proved(read_schedule(text, self.schedule))

    def load(self, path: str | Path) -> UserSchedule:
        """The region under the tree of a file that `save` (or a hand) wrote."""
        return self.with_tree(Path(path).read_text())

    # -- inside ------------------------------------------------------------------------------------------------------------------------------

    def _step(self, move: Callable[[Schedule], Schedule]) -> UserSchedule:
        """Moves on the schedule with its arrays in full, proves, and contracts again what was contracted."""
        with COMPILE_LOCK:
            moved = self._proved(move(expanded(self.schedule)))
            stored = contracted_as_before(moved.schedule, self.schedule.storage)
            return moved if stored is moved.schedule else moved._proved(stored)

    def _proved(self, schedule: Schedule) -> UserSchedule:
        _prove(schedule, self.precise)
        return UserSchedule(replace(schedule, tree=with_coincidence(schedule)), self.precise)


def _prove(schedule: Schedule, precise: bool) -> None:
    _require_short(schedule)
    check(schedule, relax_reductions=not precise)
    faults = storage_faults(schedule)
    if faults:
        raise IllegalScheduleError(f"the storage does not fit the schedule: {'; '.join(faults)}")


def _require_short(schedule: Schedule) -> None:
    """Values of loops have 64 bits."""
    for node in nodes(schedule.tree.get_root()):
        rows = members(node, schedule.scop)[0].rows.values() if kind_of(node) == Kind.band else ()
        if any(row is not None and largest_number(row) >= LARGEST for row in rows):
            raise IllegalScheduleError(f"values of loop {next(iter(rows))} could leave 64 bits")

"""Copies of tensors with zeros around them, which are not made where nothing reads the zeros.

What a convolution reads of a padded image is elements one at a time, and rows and points beside the image are left out of its sums (codegen/passes/sums/skip_zeros.py, skip_edges.py). Where none of these is left in its loops, the padded
image is the image itself, with other strides and as if it began earlier: the copy is not launched, and its memory is free for what would lie where the image is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from polyml.codegen.loops import Function
from polyml.codegen.reads_inside import reads_inside
from polyml.expressions import Apply, Read
from polyml.graph.host_steps import Allocate, Argument, Free, Launch, Plan, Step
from polyml.graph.ir import Equation
from polyml.graph.region import Region
from polyml.graph.zeros import Places, places_of_box
from polyml.records import dataclass
from polyml.sets.affine import affine
from polyml.sets.shapes import row_major_strides

__all__ = ["without_padded_copies"]

MEETS = 1024
"""Bytes: planes that lie a multiple of it apart meet in a few sets of L1; a padded copy keeps them apart."""

WAYS = 8
"""Planes that meet there without harm."""

_Key = tuple[int, str]
"""A region, and an array of it."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A region that does nothing but put zeros around a tensor. source, padded: the arrays. places: of the values. offset, strides: of the padded array if it lay where the source does, in elements."""

    source: str
    padded: str
    places: Places
    offset: int
    strides: tuple[int, ...]


def without_padded_copies(
    plan: Plan, functions: Sequence[Function], regions: Sequence[Region]
) -> tuple[Plan, tuple[Function, ...]]:
    """The plan and the functions without copies whose zeros nothing reads, as they are where there are none.

    Args:
        functions: those that the plan launches, one for each region.
    """
    # A tensor has one equation then, and whatever is written to a buffer is another tensor than before.
    ops = [op for region in regions for op in region.ops]
    if any(not isinstance(op, Equation) or op.base is not None or op.only_if is not None for op in ops):
        return plan, tuple(functions)
    found = ((number, _copy(region, functions[number], plan)) for number, region in enumerate(regions))
    copies = {number: copy for number, copy in found if copy is not None}
    refused: set[_Key] = set()
    while copies:
        attempt = _Attempt(plan, functions, copies, refused)
        if not attempt.failed:
            return attempt.finish() if attempt.moved else (plan, tuple(functions))
        refused |= attempt.failed
    return plan, tuple(functions)


def _copy(region: Region, function: Function, plan: Plan) -> _Copy | None:
    match region:
        case Region(ops=(Equation(body=Apply(op="select", args=(_, Read() as read, _))) as op,), inputs=(source,)):
            places = places_of_box(op)
        case _:
            return None
    if not places or op.result not in region.outputs or read.tensor != source.name:
        return None
    ends = [(0, e.constant) if p is None else p for e, p in zip(op.result.shape, places, strict=True)]
    shape, subscripts = zip(
        *[(affine(b - a), affine(i) - a) for i, (a, b) in zip(op.left, ends, strict=True)], strict=True
    )
    if read.subscripts != subscripts or source.shape != shape:
        return None
    array, padded = (plan.storage.get(tensor.name, tensor.name) for tensor in (source, op.result))
    own = {variable.name: variable for variable in function.arguments}
    if array not in own or padded not in own:
        return None
    # Of a contiguous tensor some indices may be one in the function.
    strides = own[array].strides or row_major_strides(source.shape)
    steps = tuple(step for step in strides if step is not None)
    if len(steps) != len(places) or any(
        p is None and extent.constant > WAYS and step * source.dtype.itemsize % MEETS == 0
        for step, extent, p in zip(steps, source.shape, places, strict=True)
    ):
        return None
    offset = -sum(first * step for (first, _), step in zip(ends, steps, strict=True))
    return _Copy(array, padded, places, offset, steps)


class _Attempt:
    """A plan in which copies are left out, one after the other. moved: what is no copy any more; failed: what must stay one, and was not known to."""

    def __init__(
        self, plan: Plan, functions: Sequence[Function], copies: Mapping[int, _Copy], refused: Set[_Key]
    ) -> None:
        """refused: what stays a copy."""
        self.plan, self.functions, self.copies, self.refused = plan, functions, copies, refused
        self.steps: list[list[Step]] = [[step] for step in plan.steps]
        self.buffers = dict(plan.buffers)
        self.moved: dict[_Key, _Copy] = {}
        self.failed: set[_Key] = set()
        launched = [step.region for step in plan.steps if isinstance(step, Launch)]
        left: dict[_Key, int] = {}
        for number, step in enumerate(plan.steps):
            if isinstance(step, Launch) and step.region in copies:
                for key in self._without(number):
                    left[key] = left.get(key, 0) + 1
        # A function is one for all of its launches.
        self.failed |= {key for key, count in left.items() if count < launched.count(key[0])}

    def finish(self) -> tuple[Plan, tuple[Function, ...]]:
        steps = [step for place in self.steps for step in place]
        launches = [step for step in steps if isinstance(step, Launch)]
        used = {argument.buffer for step in launches for argument in step.arguments}
        numbers = {old: new for new, old in enumerate(sorted({step.region for step in launches}))}
        kept = [
            replace(step, region=numbers[step.region]) if isinstance(step, Launch) else step
            for step in steps
            if not isinstance(step, Allocate | Free) or step.buffer in used
        ]
        functions = tuple(self._function(number) for number in numbers)
        return replace(self.plan, steps=tuple(kept), buffers=self.buffers), functions

    def _function(self, number: int) -> Function:
        function = self.functions[number]
        strides = {array: copy.strides for (region, array), copy in self.moved.items() if region == number}
        arguments = tuple(replace(v, strides=strides.get(v.name, v.strides)) for v in function.arguments)
        return replace(function, arguments=arguments) if strides else function

    def _without(self, number: int) -> Sequence[_Key]:
        """Leaves out a copy, and tells what is the tensor itself then: nothing where it stays."""
        (step,) = self.steps[number]
        assert isinstance(step, Launch)
        copy = self.copies[step.region]
        place = {a.array: a for a in step.arguments}
        source, padded = place[copy.source], place[copy.padded]
        readers = list(self._readers(number, padded.buffer))
        keys = [(launch.region, array) for _, launch, array in readers]
        plain = not source.offset and not padded.offset and self.buffers[padded.buffer].kind == "temporary"
        if not plain or not readers or not all(self._is_clean(key, copy) for key in keys):
            self.failed |= {key for key in keys if key not in self.refused}
            return ()
        last = max(at for at, _, _ in readers)
        written = self._next_write(number, source.buffer)
        exchanges = written is not None and written <= last
        if exchanges and {self.buffers[b].kind for b in (source.buffer, padded.buffer)} != {"temporary"}:
            self.failed |= set(keys)
            return ()
        self.steps[number] = []
        names = {source.buffer: padded.buffer, padded.buffer: source.buffer} if exchanges else {}
        for at in range(number + 1, len(self.steps)):
            # Until it is written again, the source's memory holds the source.
            before = {source.buffer} if written is not None and at < written else set()
            self.steps[at] = [_renamed(step, names, before) for step in self.steps[at]]
        for at, _, array in readers:
            self.steps[at] = [
                _with_argument(step, Argument(array, source.buffer, copy.offset)) for step in self.steps[at]
            ]
        if exchanges:
            self._enlarge(source.buffer, padded.buffer)
        else:
            self._free_behind(number, last, source.buffer)
        self.moved |= dict.fromkeys(keys, copy)
        return keys

    def _readers(self, number: int, buffer: str) -> Iterator[tuple[int, Launch, str]]:
        """The launches that read what a step has written to a buffer, and as which array."""
        for at in range(number + 1, len(self.steps)):
            for step in self.steps[at]:
                if isinstance(step, Launch):
                    arrays = [a.array for a in step.arguments if a.buffer == buffer]
                    if any(array in self.functions[step.region].written for array in arrays):
                        return
                    yield from ((at, step, array) for array in arrays)

    def _next_write(self, number: int, buffer: str) -> int | None:
        """The step behind this one that first writes to the buffer."""
        for at in range(number + 1, len(self.steps)):
            for step in self.steps[at]:
                if isinstance(step, Launch):
                    written = self.functions[step.region].written
                    if any(a.buffer == buffer and a.array in written for a in step.arguments):
                        return at
        return None

    def _is_clean(self, key: _Key, copy: _Copy) -> bool:
        """Whether the array of the region may be the tensor itself."""
        number, array = key
        same = self.moved.get(key, copy)
        if key in self.refused or (same.offset, same.strides, same.places) != (copy.offset, copy.strides, copy.places):
            return False
        return key in self.moved or reads_inside(self.functions[number], array, copy.places)

    def _enlarge(self, *names: str) -> None:
        """Makes temporaries as large as the largest of them."""
        sizes = [self.buffers[name].size_in_bytes({}) for name in names]
        largest = self.buffers[names[sizes.index(max(sizes))]]
        for name in names:
            self.buffers[name] = replace(self.buffers[name], dtype=largest.dtype, shape=largest.shape)
        for place in self.steps:
            place[:] = [
                replace(s, bytes=max(sizes)) if isinstance(s, Allocate) and s.buffer in names else s for s in place
            ]

    def _free_behind(self, number: int, last: int, buffer: str) -> None:
        """Gives memory back behind the last step that reads it."""
        for at in range(number + 1, last):
            early = [step for step in self.steps[at] if isinstance(step, Free) and step.buffer == buffer]
            if early:
                self.steps[at] = [step for step in self.steps[at] if step not in early]
                self.steps[last] += early


def _renamed(step: Step, names: Mapping[str, str], before: Set[str]) -> Step:
    """The step with the buffers that values are in from here on. before: those that are what they were."""
    match step:
        case Launch():
            own = {b: new for b, new in names.items() if b not in before}
            arguments = tuple(replace(a, buffer=own.get(a.buffer, a.buffer)) for a in step.arguments)
            return replace(step, arguments=arguments)
        case _:
            return replace(step, buffer=names.get(step.buffer, step.buffer))


def _with_argument(step: Step, argument: Argument) -> Step:
    if not isinstance(step, Launch):
        return step
    return replace(step, arguments=tuple(argument if a.array == argument.array else a for a in step.arguments))

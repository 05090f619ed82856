"""The Plan as data: buffers and steps of the host program around the regions. Nothing here needs isl: a kernel from the disk cache brings its Plan along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from polyml.dtypes import DType
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["ALIGNMENT", "Allocate", "Argument", "Buffer", "BufferKind", "CheckFlag", "Free", "Launch", "Plan", "Step"]

ALIGNMENT = 64
"""Of temporaries, in bytes: a cache line, and the widest vector."""

BufferKind = Literal["input", "output", "temporary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A piece of memory. input: an argument of the call; output: a result that the call allocates (or the caller's `out=`).

    dtype, shape: of the (first) array in it, which tells the size: `itemsize * product of the shape`, in bytes.
    """

    name: str
    kind: BufferKind
    dtype: DType
    shape: tuple[Affine, ...]

    def size_in_bytes(self, sizes: Mapping[str, int]) -> int:
        """With the values of the symbolic sizes."""
        total = self.dtype.itemsize
        for extent in self.shape:
            total *= extent.evaluate(sizes)
        return total


@dataclass(frozen=True, slots=True)
class Argument:
    """A region's `array` (a name of Plan.storage, and of the region's Scop) lies in `buffer`, so many of its elements (offset) behind the start."""

    array: str
    buffer: str
    offset: int = 0

    def __str__(self) -> str:
        if self.offset:
            return f"{self.array} in {self.buffer} from {self.offset} on"
        return self.array if self.array == self.buffer else f"{self.array} in {self.buffer}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run region number `region`. `arguments`: its arrays that exist outside of it, inputs first, each once. only_if: where the bool at the start of that buffer is true."""

    region: int
    arguments: tuple[Argument, ...]
    only_if: str | None = None


@dataclass(frozen=True, slots=True)
class Allocate:
    """Get memory for a temporary; its size is that of Plan.buffers[buffer] (`bytes`: when no size is symbolic)."""

    buffer: str
    bytes: int | None
    alignment: int = ALIGNMENT


@dataclass(frozen=True, slots=True)
class Free:
    """The temporary is not used any more."""

    buffer: str


@dataclass(frozen=True, slots=True)
class CheckFlag:
    """Raise `error` with `message` when the bool at the start of `buffer` is true (temporaries still allocated are given back first).

    indices, extent: as in a Check of a graph.
    """

    buffer: str
    message: str
    error: Literal["IndexError"]
    indices: str | None = None
    extent: Affine | None = None


Step = Launch | Allocate | Free | CheckFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """buffers: all, by name. steps: in order. inputs, outputs: the buffers of the graph's inputs and outputs, in order (an output that is the final
    value of a written input is that input's buffer). storage: per tensor its array, those local to a region included."""

    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    storage: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(map(_step_text, self.steps))


def _step_text(step: Step) -> str:
    match step:
        case Launch():
            condition = "" if step.only_if is None else f" if {step.only_if}"
            return f"launch region {step.region} ({', '.join(map(str, step.arguments))}){condition}"
        case Allocate():
            return f"allocate {step.buffer}" + (f": {step.bytes} bytes" if step.bytes is not None else "")
        case Free():
            return f"free {step.buffer}"
        case CheckFlag():
            return f"check {step.buffer}: {step.error} {step.message.splitlines()[0]!r}"

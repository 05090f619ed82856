"""A region on a GPU as data: its kernels, and the host program that launches them. The runtime runs it; nothing is decided after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from polyml.codegen.loops import Allocate, Assign, Axis, For, Function, UpdateArgument, Variable
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Expr
from polyml.gpu_core import Limits
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, FloorDiv
from polyml.sets.shapes import element_count

__all__ = ["AXES", "Branch", "CudaRegion", "DeviceArray", "HostStep", "Kernel", "Launch", "Repeat", "grid_of"]

AXES: tuple[Axis, ...] = ("x", "y", "z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One `__global__` function. function: its loops; its arguments are pointers, its sizes (those of the program and the variables of host loops) are i64.
    threads: of a block, per axis."""

    function: Function
    threads: tuple[int, int, int]

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def blocks(self) -> tuple[For, ...]:
        """Its block loops, outer ones first."""
        return tuple(n for n in walk_nodes(self.function.body) if isinstance(n, For) and n.kind == "block")

    @property
    def shared_bytes(self) -> int:
        """Shared memory of its scratch arrays."""
        shared = [n.variable for n in walk_nodes(self.function.body) if isinstance(n, Allocate)]
        return sum(v.dtype.itemsize * element_count(v.shape) for v in shared if v.scope == "shared")

    @property
    def exchange_bytes(self) -> int:
        """Shared memory in which its warps combine what they have: an element per warp, for each type (cuda/blocks/uniform.py)."""
        found: dict[str, int] = {}
        for node in walk_nodes(self.function.body):
            match node:
                case Assign(across=True):
                    found[node.value.dtype.name] = node.value.dtype.itemsize
                case UpdateArgument(across=True):
                    found |= {node.candidate.dtype.name: node.candidate.dtype.itemsize, "index": 8}
                case _:
                    pass
        return sum(found.values()) * max(1, prod(self.threads) // 32)

    def __str__(self) -> str:
        blocks = ", ".join(f"{loop.variable} on {loop.axis}" for loop in self.blocks) or "one"
        shared = f", {self.shared_bytes} bytes of shared memory" if self.shared_bytes else ""
        return f"{' x '.join(map(str, self.threads))} threads, blocks: {blocks}{shared}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run kernel number `kernel` of the region on its grid."""

    kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """`for (variable = lower; variable < upper; variable += step) body`, on the host."""

    variable: str
    lower: Affine
    upper: Affine
    step: int
    body: tuple[HostStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The steps run when the condition (over sizes and host loop variables) holds, else `otherwise`."""

    condition: Expr
    then: tuple[HostStep, ...]
    otherwise: tuple[HostStep, ...]


HostStep = Launch | Repeat | Branch


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Scratch memory that the region's kernels share, for the time of one call."""

    variable: Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRegion:
    """A region: `kernels`, the device memory that they exchange, and the `steps` of the host."""

    name: str
    kernels: tuple[Kernel, ...]
    scratch: tuple[DeviceArray, ...]
    steps: tuple[HostStep, ...]


def grid_of(
    kernel: Kernel, values: Mapping[str, int], most: tuple[int, int, int] = Limits().grid
) -> tuple[int, int, int] | None:
    """Blocks per axis: enough for one tile each of the longest loop where the device allows, else they take turns; None when there is nothing to run.

    Args:
        values: of the kernel's sizes. most: of the device, for x, y and z.
    """
    known: dict[str, tuple[int, int]] = {name: (value, value) for name, value in values.items()}
    counts: dict[Axis, int] = {}
    for loop in kernel.blocks:
        assert loop.axis is not None, "internal: a block loop without an axis"
        low, high = _interval(loop.lower, known)[0], _interval(loop.upper, known)[1]
        known[loop.variable] = _hull(known.get(loop.variable), (low, max(low, high - 1)))
        # Tiles are counted from multiples of the factor.
        count = max(0, -(-high // loop.factor) - low // loop.factor)
        counts[loop.axis] = max(counts.get(loop.axis, 0), count)
    if any(count == 0 for count in counts.values()):
        return None
    x, y, z = (min(counts.get(axis, 1), limit) for axis, limit in zip(AXES, most, strict=True))
    return x, y, z


def _hull(left: tuple[int, int] | None, right: tuple[int, int]) -> tuple[int, int]:
    return right if left is None else (min(left[0], right[0]), max(left[1], right[1]))


def _interval(value: Affine, known: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Bounds of an expression whose variables lie in closed intervals."""
    low = high = value.constant
    for atom, coefficient in value.terms:
        match atom:
            case str():
                ends = known[atom]
            case FloorDiv():
                bounds = _interval(atom.numerator, known)
                ends = bounds[0] // atom.denominator, bounds[1] // atom.denominator
            case Extremum():
                ends = _extremum(atom, [_interval(operand, known) for operand in atom.operands])
        low += coefficient * ends[0 if coefficient > 0 else 1]
        high += coefficient * ends[1 if coefficient > 0 else 0]
    return low, high


def _extremum(atom: Extremum, intervals: Iterable[tuple[int, int]]) -> tuple[int, int]:
    choose = min if atom.kind == "min" else max
    lows, highs = zip(*intervals, strict=True)
    return choose(lows), choose(highs)

"""Runs of assignments to neighbouring elements as one access of 16 or 8 bytes, where alignment is known: arrays begin at multiples of 16 bytes, and the bounds of loops say the rest.

A run is moved together, so none of its assignments may read what another writes. Values are computed one by one; what all of them read side by side, and
in any case, is loaded together as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyml.codegen.cuda.text.expression import Writer
from polyml.codegen.loops import Assign, Node
from polyml.codegen.rewrite import uses
from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Gathered", "Loaded", "Moved", "Run", "runs", "vector_type"]

_TYPES = {"f32": "float", "f64": "double", "i32": "int", "u32": "uint", "i64": "longlong", "u64": "ulonglong"}
_TYPES |= {"f16": "ushort", "bf16": "ushort", "u16": "ushort", "i16": "short"}


def vector_type(dtype: DType, count: int) -> str | None:
    """`float4`; None where CUDA has no such type."""
    return f"{_TYPES[dtype.name]}{count}" if dtype.name in _TYPES and count in (2, 4) else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Reads of neighbouring elements, one per assignment of a run."""

    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Assignments to neighbouring elements, in order of address. loads: what they read side by side."""

    assigns: tuple[Assign, ...]
    loads: tuple[Loaded, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """Neighbouring elements that are copied as they are, `size` bytes at once."""

    target: Assign
    size: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """Assignments to registers, and updates of them, in order. loads: what they read side by side."""

    assigns: tuple[Assign, ...]
    loads: tuple[Loaded, ...]


def runs(nodes: Sequence[Node], w: Writer) -> Iterator[Node | Run | Moved | Gathered]:
    """The nodes of one body, neighbours taken together where that is possible and known to be right."""
    pending: list[Assign] = []
    for node in _gathered(nodes, w):
        if isinstance(node, Gathered):
            yield from _grouped(pending, w)
            yield node
            pending = []
            continue
        if isinstance(node, Assign) and _fits(node, w) and _apart([*pending, node]):
            pending.append(node)
            continue
        yield from _grouped(pending, w)
        pending = [node] if isinstance(node, Assign) and _fits(node, w) and _apart([node]) else []
        if not pending:
            yield node
    yield from _grouped(pending, w)


def _gathered(nodes: Sequence[Node], w: Writer) -> Iterator[Node | Gathered]:
    """The nodes with assignments to registers that follow each other in one, where these read neighbours from device memory."""
    together: list[Assign] = []
    for node in (*_registers_first(nodes, w), None):
        if isinstance(node, Assign) and _is_inner(node, w):
            together.append(node)
            continue
        loads = tuple(_beside(together, w))
        if loads:
            yield Gathered(tuple(together), loads)
        else:
            yield from together
        together = []
        if node is not None:
            yield node


def _registers_first(nodes: Sequence[Node], w: Writer) -> list[Node]:
    """The nodes with stores behind the assignments to registers that follow them, where neither sees the other: so that stores of neighbours follow each other."""
    made: list[Node] = []
    stores: list[Assign] = []
    for node in nodes:
        if isinstance(node, Assign) and _fits(node, w):
            stores.append(node)
            continue
        if not (isinstance(node, Assign) and _is_inner(node, w) and _independent(stores, node)):
            made += stores
            stores = []
        made.append(node)
    return [*made, *stores]


def _independent(stores: Sequence[Assign], node: Assign) -> bool:
    """Whether no store reads the register that the node writes, and the node reads nothing that they write."""
    written = {store.target.variable for store in stores}
    read = {use.variable for store in stores for use in uses(store) if use.read}
    return node.target.variable not in read and not any(use.read and use.variable in written for use in uses(node))


def _is_inner(node: Assign, w: Writer) -> bool:
    return w.variables[node.target.variable].scope == "register" and not (node.across or node.atomic)


def _beside(assigns: Sequence[Assign], w: Writer) -> Iterator[Loaded]:
    """What these read in any case, four or two neighbours at a time. Nothing of it changes meanwhile: only registers are written. (Shared memory the compiler reads that way by itself.)"""
    groups: dict[tuple[str, Affine], dict[int, Read]] = {}
    for read in dict.fromkeys(read for node in assigns for read in _certain(node.value)):
        place = _address(read.tensor, read.subscripts, w) if w.variables[read.tensor].scope == "global" else None
        if place is not None:
            groups.setdefault((read.tensor, place - place.constant), {})[place.constant] = read
    for group in groups.values():
        for first in sorted(group):
            for count in (4, 2):
                reads = tuple(group[first + k] for k in range(count) if first + k in group)
                if len(reads) == count and vector_type(reads[0].dtype, count) and _neighbours(reads, w):
                    yield Loaded(reads)
                    for k in range(count):
                        del group[first + k]
                    break


def _fits(node: Assign, w: Writer) -> bool:
    return (
        node.reduction is None and not node.across and w.variables[node.target.variable].scope in ("global", "shared")
    )


def _apart(assigns: Sequence[Assign]) -> bool:
    """Whether no assignment reads what another one writes: of arrays that are written each reads its own element at most."""
    written = {node.target.variable for node in assigns}
    return not any(
        use.read
        and use.variable in written
        and (use.variable, use.subscripts) != (node.target.variable, node.target.subscripts)
        for node in assigns
        for use in uses(node)
    )


def _grouped(assigns: Sequence[Assign], w: Writer) -> Iterator[Node | Run | Moved]:
    """By array and moving part of the address; in each group neighbours, from aligned ones on."""
    groups: dict[tuple[str, Affine], dict[int, Assign]] = {}
    for node in assigns:
        place = _address(node.target.variable, node.target.subscripts, w)
        key = (node.target.variable, affine(0)) if place is None else (node.target.variable, place - place.constant)
        group = groups.setdefault(key, {})
        if place is None or place.constant in group:
            yield from assigns  # two writes of one element, or addresses that are not known: the order stays
            return
        group[place.constant] = node
    for (name, moving), group in groups.items():
        yield from _cut(group, w.ranges.multiple(moving), w.variables[name].dtype, w)


def _cut(group: dict[int, Assign], multiple: int, dtype: DType, w: Writer) -> Iterator[Node | Run | Moved]:
    left = dict(sorted(group.items()))
    while left:
        first = next(iter(left))
        for size in (16, 8):
            count = size // dtype.itemsize
            fits = count > 1 and multiple % count == 0 and first % count == 0
            if fits and all(first + k in left for k in range(count)):
                run = tuple(left[first + k] for k in range(count))
                made = _together(run, dtype, size, w)
                if made is not None:
                    yield made
                    for k in range(count):
                        del left[first + k]
                    break
        else:
            yield left.pop(first)


def _together(run: tuple[Assign, ...], dtype: DType, size: int, w: Writer) -> Run | Moved | None:
    if all(isinstance(node.value, Read) and node.value.dtype == dtype for node in run):
        reads = tuple(node.value for node in run if isinstance(node.value, Read))
        if _neighbours(reads, w):
            return Moved(run[0], size)
    if vector_type(dtype, len(run)) is None or any(node.asynchronous for node in run):
        return None
    return Run(run, tuple(_loads(run, w)))


def _loads(run: Sequence[Assign], w: Writer) -> Iterator[Loaded]:
    """Reads that every assignment makes in any case, at the same place of its value, of neighbouring elements."""
    for reads in zip(*(tuple(_certain(node.value)) for node in run), strict=False):
        if vector_type(reads[0].dtype, len(run)) is not None and _neighbours(reads, w):
            yield Loaded(reads)


def _certain(value: Expr) -> Iterator[Read]:
    """Reads that do not depend on a condition, in order."""
    match value:
        case Read():
            yield value
        case Const() | IndexValue():
            return
        case Apply():
            for arg in value.args[:1] if value.op == "select" else value.args:
                yield from _certain(arg)


def _neighbours(reads: tuple[Read, ...], w: Writer) -> bool:
    """Whether the elements are side by side, from an aligned one on."""
    if len({(r.tensor, r.dtype) for r in reads}) != 1:
        return False
    places = [_address(r.tensor, r.subscripts, w) for r in reads]
    first = places[0]
    if first is None or any(p is None or p - first != affine(k) for k, p in enumerate(places)):
        return False
    count = len(reads)
    return count * reads[0].dtype.itemsize <= 16 and w.ranges.multiple(first) % count == 0


def _address(name: str, subscripts: tuple[Subscript, ...], w: Writer) -> Affine | None:
    """The element's position in its array, in memory that vectors can reach."""
    variable = w.variables[name]
    if variable.scope not in ("global", "shared"):
        return None
    total = affine(0)
    for subscript, stride in zip(subscripts, variable.memory_strides, strict=True):
        if not isinstance(subscript, Affine) or stride is None:
            return None
        total = total + subscript * stride
    return total

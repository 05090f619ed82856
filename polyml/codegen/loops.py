"""Loops: the small target-neutral loop language that emitters walk.

Expressions are those of polyml.expressions: reads name arrays, subscripts are quasi-affine in loop variables and sizes. Vector code keeps scalar notation:
inside a `For` of kind "vector" its variable stands for `width` consecutive values, so an access is a broadcast, a contiguous vector, a strided one or a gather
by the stride of its address along that variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from polyml.dtypes import DType
from polyml.expressions import Expr, Subscript
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine
from polyml.sets.shapes import element_count, is_known, row_major_strides
from polyml.shown import Shown

__all__ = [
    "Allocate",
    "Assign",
    "Axis",
    "Block",
    "Bounds",
    "For",
    "Function",
    "If",
    "Lead",
    "LoopKind",
    "Multiples",
    "Node",
    "Place",
    "Prefetch",
    "Scan",
    "Scope",
    "UpdateArgument",
    "Variable",
]

Scope = Literal["global", "local", "private", "register", "shared"]
LoopKind = Literal[
    "sequential", "parallel", "pipelined", "stage", "vector", "transpose", "shuffle", "jam", "unroll", "block", "thread"
]
Axis = Literal["x", "y", "z"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Storage: a caller's array (scope global), scratch memory of one thread (local) or of a block of CUDA threads (shared), or registers
    (register: a 0-d value; private: what each thread of a CUDA block has of its own, from one of its thread loops to the next).

    shape: extents, affine in the sizes. strides: in elements; None: contiguous, row-major. lanes: a register that holds that many elements, or scratch
    memory that exists that many times (the copies of an element side by side), one per lane of the vector loop it is used in. alignment: of the first
    element, bytes.
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    scope: Scope
    strides: tuple[int, ...] | None = None
    lanes: int = 1
    alignment: int | None = None

    @property
    def bytes(self) -> int | None:
        """Of all elements; None where that depends on sizes."""
        return self.dtype.itemsize * element_count(self.shape) if is_known(self.shape) else None

    @property
    def memory_strides(self) -> tuple[int | None, ...]:
        """Elements between neighbours per dimension; None where that depends on sizes."""
        return row_major_strides(self.shape) if self.strides is None else self.strides


@dataclass(frozen=True, slots=True)
class Place:
    """The element of a variable that is written."""

    variable: str
    subscripts: tuple[Subscript, ...]

    def at(self, subscripts: Iterable[Subscript]) -> Place:
        """The variable's element at others; itself where they are the same objects."""
        made = renewed(self.subscripts, subscripts)
        return self if made is self.subscripts else Place(self.variable, made)

    def __str__(self) -> str:
        return f"{self.variable}[{', '.join(map(str, self.subscripts))}]" if self.subscripts else self.variable


@dataclass(frozen=True, slots=True)
class Scan:
    """The state of a recurrence along lanes: `carry`, a register without lanes, and what it is multiplied by from one step to the next, or, for maxima and minima, what is added to it (None: nothing changes
    it). reset: where this holds, what was before does not count (None: nowhere). second: of a linear recurrence of second order, what the element before the last one, in the register `earlier`, is multiplied by; the same, as `factor`, in all iterations."""

    carry: str
    factor: Expr | None = None
    reset: Expr | None = None
    second: Expr | None = None
    earlier: str | None = None

    @property
    def carries(self) -> tuple[str, ...]:
        """The registers that it moves on."""
        return (self.carry,) if self.earlier is None else (self.carry, self.earlier)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """What a step evaluates beside its value."""
        return tuple(expr for expr in (self.factor, self.reset, self.second) if expr is not None)

    def changed(self, rename: Callable[[str], str], change: Callable[[Expr], Expr]) -> Scan:
        """The scan with other carries, and with these expressions changed."""
        parts = (self.factor, self.reset, self.second)
        factor, reset, second = (None if expr is None else change(expr) for expr in parts)
        return Scan(rename(self.carry), factor, reset, second, None if self.earlier is None else rename(self.earlier))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """`target = value`, or with `reduction` (a row of REDUCTIONS with a combine op) `target = combine(target, value)`.

    across: `value` is a register with lanes, and its lanes are combined too (a horizontal reduction); used outside vector loops only. In a CUDA
        kernel it is a register of each thread, and the block's threads are combined; used outside thread loops only.
    streaming: the store should bypass the caches, where a whole vector is written at once to an address that is provably a multiple of its size;
    aligned: it is one, by what holds wherever this runs (codegen/passes/large.py).
    asynchronous: (CUDA) a copy to shared memory that is finished at the next barrier, and not seen before.
    atomic: (CUDA) several threads may do so to one element at once; with `reduction`.
    scan: in a vector loop: lane after lane, `carry = reset ? value : combine(factor * carry, value); target = carry`, with the sum or what `reduction` names (maxima, minima: `factor + carry`), or
        `carry, earlier = factor * carry + second * earlier + value, carry; target = carry`. The value itself is evaluated for all lanes before.
    """

    target: Place
    value: Expr
    reduction: str | None = None
    across: bool = False
    streaming: bool = False
    aligned: bool = False
    asynchronous: bool = False
    atomic: bool = False
    scan: Scan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateArgument:
    """One step of argmax or argmin: when `candidate` beats `best` (first winner; NaN wins; anything beats `argument` == -1), store it and its index.

    candidate_index: i64 expression; its value may be per lane.
    across: `candidate` and `candidate_index` read registers with lanes, combined with each other too (ties go to the smaller index; a lane whose
        index is -1 has seen nothing and takes no part). Used outside vector loops only.
    """

    kind: Literal["argmax", "argmin"]
    best: Place
    argument: Place
    candidate: Expr
    candidate_index: Expr
    across: bool = False


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The cache line of this element (in a vector loop: of its first lane) will be read soon, or written; it may lie outside its array. level: of the nearest cache to bring it to, 1 or 2."""

    place: Place
    level: int
    write: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class For:
    """`for (variable = lower; variable < upper; variable += step) body`.

    kind: sequential; parallel (iterations are independent); pipelined (threads take iterations in order; within, an iteration of a `stage` loop, one of the outermost there, begins when the
    iteration of the pipelined loop before this one has gone beyond its value, so that nothing may depend on greater ones there); vector (see the module; `step` is a multiple of `width`, and in a `masked` one the
    lanes at or past `upper` do nothing); jam and unroll are requests with `factor`, which loop passes carry out before emission.
    A vector loop as generated has width 1 and `factor` = the number of vectors to jam; the vectorize pass gives it its width.
    transpose: within a vector loop, at most as many iterations as that has lanes, each one assignment between scratch memory with lanes and an array that the
    loop's variable walks along by single elements: the lanes' rows are transposed in registers.

    shuffle: the outermost of a nest of loops, of known lengths, around one copy between two arrays, which writes a run of neighbours; it has at least `factor` iterations, and passes make blocks of so many of it, whose `width` is how many elements a vector register has (at most eight bytes each).

    block, thread (CUDA, with an `axis`): iterations are independent and belong to the blocks of a grid, or to the threads of a block. The value v is run by
    block number `v // factor` modulo the grid's extent, or by thread number v modulo `factor`: equal values in different loops of a kernel
    meet in the same place. Where one block runs several thread loops, one is finished before the next begins.

    if_numbers: flags (variables of one bool); where all of them hold, no candidate of its minima and maxima is a NaN. hopes: where one does not, there may be none all the same.
    """

    variable: str
    lower: Affine
    upper: Affine
    step: int = 1
    kind: LoopKind = "sequential"
    factor: int = 1
    width: int = 1
    masked: bool = False
    axis: Axis | None = None
    if_numbers: tuple[str, ...] = ()
    hopes: bool = False
    body: tuple[Node, ...]

    @property
    def mapped(self) -> bool:
        """Whether its iterations are spread over blocks or threads."""
        return self.kind in ("block", "thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    """`if (condition) then else otherwise`: a bool expression; inside a vector loop it may differ between lanes."""

    condition: Expr
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """`variable` exists, uninitialized, within `body`: one per iteration of the enclosing loops, so one per thread."""

    variable: Variable
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes in order. barrier: (CUDA) all threads of the block meet first, which makes what they wrote seen; used outside thread loops only."""

    body: tuple[Node, ...]
    barrier: bool = False


Node = Assign | UpdateArgument | Prefetch | For | If | Allocate | Block


@dataclass(frozen=True, slots=True)
class Lead:
    """An integer: how many elements of the argument `array`, from the one at `row` on, lie before the first whose address is a multiple of `bytes`.

    row: affine in loop variables; none: the array's first element. inside: the loop in whose body it is known; none: in the whole function.
    """

    name: str
    array: str
    bytes: int
    row: tuple[Affine, ...] = ()
    inside: str = ""

    def elements(self, itemsize: int) -> int:
        """The lead is below this number."""
        return self.bytes // itemsize


Bounds = tuple[tuple[str, int | None, int | None], ...]
"""Of sizes and leads: the least and the greatest value, where known."""

Multiples = tuple[tuple[str, int], ...]
"""Of sizes: a number beyond 1 that they are multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Shown):
    """One compiled region. Arguments: a pointer per variable of `arguments` (pairwise disjoint unless equal), then the `sizes` as i64.
    leads: further integers that bounds and subscripts may use, besides the sizes. needs: expressions in the sizes that must not be negative; only in a version that runs
    under this condition (codegen/passes/large.py). bounds, multiples: what is known of sizes. products: those of `sizes` that whoever calls the function makes from others: their factors."""

    name: str
    arguments: tuple[Variable, ...]
    written: frozenset[str]
    sizes: tuple[str, ...]
    body: tuple[Node, ...]
    leads: tuple[Lead, ...] = ()
    needs: tuple[Affine, ...] = ()
    bounds: Bounds = ()
    multiples: Multiples = ()
    products: Mapping[str, tuple[Affine, ...]] = field(default_factory=dict)

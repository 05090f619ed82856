"""The Graph: SSA over whole tensors, one Einstein equation per op.

Nearly every op is an `Equation`, so each rewrite is written once. A partial write is a functional update: an Equation with a `base` whose other
elements stay. A `for` is a `Loop` with a body and carried tensors, not an opaque box. Storage does not exist here; whether an update
happens in place is decided later, from dependences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

import islpy as isl

from polyml.dtypes import DType
from polyml.expressions import Expr, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.weighed import Weighed
from polyml.shown import Shown
from polyml.source import Span

__all__ = ["Carried", "Check", "Equation", "Graph", "Input", "Loop", "Op", "Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An SSA value: a whole tensor. `shape` is affine in the graph's sizes (mostly constants); `name` is unique in the graph and an
    isl identifier; `label` is the user's name for it."""

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """`result[target(i)] (=|combine=) reduce over the reduced indices of body(i)`, for every point i of `domain`.

    result: the tensor made. indices: all indices, those of the left side first, then `reduced`; the dimensions of `domain` in this order.
    domain: `{ name[indices] : ... }` with the tuple name `result.name`; parameters are sizes and enclosing loop variables.
    target: one subscript per dimension of the result, affine in the indices, or an expression (scatter).
    reduce: a row of polyml.ops.REDUCTIONS, or None when nothing is reduced.
    accumulate: the reduction continues from `base` (`+=`), whose element is combined too; several instances may then hit one element, even when
        `reduced` is empty. Without it an element that is hit takes the reduced value alone.
    base: the tensor whose elements stay where `target` does not hit; None: every element is hit.
    instances: with `reduce` and a `base` (or a target that is not plain indices): the set of left-side points, `{ name[left indices] : ... }`, when some of
        them have nothing to reduce and take the identity; None: the whole result when there is no base, else the projection of `domain`.
    body: reads name tensors of the graph; its dtype is `result.dtype` (argmax, argmin: that of the compared values).
    padded: points beside the domain, whose terms have a padded factor, may be summed as well, with zeros for what they read outside of tensors.
    apart: its result is to be in memory, made by a region of its own: contractions pack their operands from there.
    only_if: a flag (a bool of no dimensions) without which nothing is computed, and the result is the base: what makes a base right again that was computed in a way that rare values do not
        allow. Alone in its region, and no accumulation; every element that it hits may be computed in any case.
    likely: the flag may well be set, so that speed counts there, too.
    """

    result: Tensor
    indices: tuple[str, ...]
    domain: isl.Set
    target: tuple[Subscript, ...]
    body: Expr
    reduce: str | None = None
    reduced: tuple[str, ...] = ()
    accumulate: bool = False
    base: Tensor | None = None
    instances: isl.Set | None = None
    span: Span | None = None
    padded: bool = False
    apart: bool = False
    only_if: Tensor | None = None
    likely: bool = False

    @property
    def left(self) -> tuple[str, ...]:
        """The indices of the left side."""
        return self.indices[: len(self.indices) - len(self.reduced)]

    @property
    def is_plain(self) -> bool:
        """Whether the target is the indices of the left side, one for each dimension in this order."""
        return self.target == tuple(map(affine, self.left))


@dataclass(frozen=True, slots=True)
class Carried:
    """A tensor that a loop carries: `inner` is its value at the start of an iteration (`initial` in the first), `next` at its end,
    `result` after the loop (`initial` when there is no iteration). All four have one dtype and shape."""

    initial: Tensor
    inner: Tensor
    next: Tensor
    result: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`for variable in range(start, stop, step): body`, in order; the variable is a parameter of the body's domains."""

    variable: str
    start: Affine
    stop: Affine
    step: int
    body: tuple[Op, ...]
    carried: tuple[Carried, ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Raise `error` when the 0-d bool tensor `flag` is true; before anything that stands behind it is written.

    indices: the input whose elements, each of them, are the subscripts that are checked; nothing is written before it. None: they are computed, or some of them are not used.
    extent: what they have to be less than.
    """

    flag: Tensor
    error: Literal["IndexError"]
    message: str
    span: Span | None = None
    indices: str | None = None
    extent: Affine | None = None


Op = Equation | Loop | Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A parameter of the program. `written`: it is updated in place, and `final` is the tensor that it holds at the end."""

    tensor: Tensor
    written: bool = False
    final: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Shown):
    """A traced program.

    name: of the program. sizes: the `int` parameters and the extents that stay symbolic (isl parameters of all sets). context: what is known of them.
    inputs: tensors and scalars (0-d) in call order. outputs: the returned tensors in order (an output may be an input's `final`).
    requires: expressions in the sizes that must be at least 0 at a call. examples: values of sizes in the call that it is made for, where they are known; they decide what pays, never what is right; suits: where that pays, too. warnings: what checking noticed, for explain().
    """

    name: str
    sizes: tuple[str, ...]
    context: isl.Set
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Tensor, ...]
    warnings: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[Affine, ...] = ()
    examples: Mapping[str, int] = field(default_factory=dict, compare=False)
    suits: tuple[Weighed, ...] = ()

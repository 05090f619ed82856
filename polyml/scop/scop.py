"""The Scop: a region as statements over integer sets, with arrays instead of tensors.

Reductions are split: `init` writes the identity, `update` combines one contribution into the element (an associative self-dependence that the scheduler may
relax), and a following elementwise equation is a statement of its own that the scheduler may put right behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import Literal

import islpy as isl

from polyml.dtypes import DType
from polyml.expressions import Expr, Subscript, reads_of
from polyml.new_names import array_name
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.shapes import element_count, is_known, row_major_strides
from polyml.shown import Shown
from polyml.source import Span

__all__ = ["Access", "Array", "ArrayKind", "Scop", "Statement", "StatementKind"]

ArrayKind = Literal["input", "output", "inout", "local"]
StatementKind = Literal["assign", "init", "update", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Memory that a region touches. `kind` local: neither live-in nor live-out, so its storage is the schedule's business.

    shape: affine in the sizes. strides: in elements per dimension, of the caller's array (input, output, inout); None: contiguous, row-major.
    constant: an input that is the same in all calls, so that copies of it are made once. A 0-d array is a scalar. same_as: of an input's second name (schedule/second_names.py), the first.
    values: of an input that has zeros around its values, per dimension the first place and the end of those beyond which all are zero, None where none are; () where that is not known.
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    kind: ArrayKind
    strides: tuple[int, ...] | None = None
    constant: bool = False
    same_as: str = ""
    values: tuple[tuple[int, int] | None, ...] = ()

    @property
    def bytes(self) -> int | None:
        """Of all elements; None where that depends on sizes."""
        return self.dtype.itemsize * element_count(self.shape) if is_known(self.shape) else None

    @property
    def memory_strides(self) -> tuple[int | None, ...]:
        """Elements between neighbours per dimension; None where that depends on sizes."""
        return row_major_strides(self.shape) if self.strides is None else self.strides


@dataclass(frozen=True, slots=True)
class Access:
    """One element of `array` per instance: affine subscripts, or expressions where the access is indirect (it may touch the whole dimension)."""

    array: str
    subscripts: tuple[Subscript, ...]

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.subscripts))}]" if self.subscripts else self.array


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One assignment, executed once per point of its domain.

    name: of its tuple in all sets. indices: names of the domain's dimensions, enclosing sequential loop variables first.
    loop_depth: how many of the leading indices are sequential loop variables.
    domain: `{ name[indices] : ... }`; parameters are the scop's sizes.
    kind: assign and copy: `target = value`; init: `target = identity`; update: `target = target (+) value` with `reduction`.
    reduction: a row of polyml.ops.REDUCTIONS (update only; init carries it too, for the printer).
    argument: argmax and argmin only: where the winning index goes (`target` holds the best value so far), and `argument_value` is that index;
        on init `argument` is written with -1, "nothing seen yet".
    """

    name: str
    indices: tuple[str, ...]
    domain: isl.Set
    kind: StatementKind
    target: Access
    value: Expr
    reduction: str | None = None
    argument: Access | None = None
    argument_value: Affine | None = None
    loop_depth: int = 0
    span: Span | None = None

    @property
    def written(self) -> tuple[Access, ...]:
        """What it writes: the target, and of argmax and argmin where the winning index goes."""
        return (self.target,) if self.argument is None else (self.target, self.argument)

    @property
    def accesses(self) -> list[Access]:
        """What it writes, then what its value reads."""
        return [*self.written, *(Access(read.tensor, read.subscripts) for read in reads_of(self.value))]

    @property
    def touched(self) -> set[str]:
        """The arrays that it writes or reads, those among them that only computed subscripts of what is written read."""
        computed = (s for access in self.written for s in access.subscripts if not isinstance(s, Affine))
        found = {read.tensor for expr in (self.value, *computed) for read in reads_of(expr)}
        return found | {access.array for access in self.written}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scop(Shown):
    """Statements in written order with their access relations.

    context: what is known of the sizes (a parameter set). arrays and statements by name, in order.
    initial: `{ S[i] -> [time] }`, the written order (2d+1 form, one space for all statements).
    reads, may_writes, must_writes: `{ S[i] -> A[e] }`; an indirect access reads or may write the whole dimension. must_writes is within may_writes.
    reductions: `{ S[i] -> A[e] }` of the update statements: their accesses commute with each other.
    examples: values of sizes in the call that it is made for, where they are known; they decide what pays, never what is right.
    products: those of `sizes` that are products of sizes of the program, which an index has that stands for two of its indices (joined_indices.py), with their factors.
    """

    name: str
    context: isl.Set
    sizes: tuple[str, ...]
    arrays: dict[str, Array]
    statements: dict[str, Statement]
    initial: isl.UnionMap
    reads: isl.UnionMap
    may_writes: isl.UnionMap
    must_writes: isl.UnionMap
    reductions: isl.UnionMap
    examples: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, tuple[Affine, ...]] = field(default_factory=dict)

    def with_products(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Values of sizes with those of the products whose factors are among them."""
        found = dict(sizes)
        for name, factors in self.products.items():
            if all(factor.variables() <= sizes.keys() for factor in factors):
                found[name] = prod(factor.evaluate(sizes) for factor in factors)
        return found

    def new_array(self, wish: str) -> str:
        """A name for an array more: the wish, or what nothing here is called, nor the statement `S_..` that would fill it."""
        return array_name(wish, {*self.arrays, *self.statements})

    @property
    def domain(self) -> isl.UnionSet:
        """All instances."""
        total = isl.UnionSet.empty(self.context.get_space())
        for statement in self.statements.values():
            total = total.union(statement.domain.to_union_set())
        return total

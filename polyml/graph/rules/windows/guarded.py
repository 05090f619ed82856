"""Sums that may read zeros beside a tensor, as long as what these are multiplied by is finite: computed in that way, and once more, term by term, where it is not.

A term that a program leaves out is not zero times the other factor, which is no number where that factor is infinite or none. But factors are finite in nearly all calls, and a copy with zeros around a tensor, over
which all sums are alike, is several times as fast. Whether a tensor is finite is one sweep over it (once, where it is bound); with the flag set, the sums that were asked for overwrite the others.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Read
from polyml.graph.builder.parts import fill
from polyml.graph.edit import with_name
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.new_names import fresh_name
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["guarded", "with_zeros"]


def with_zeros(equation: Equation, tensors: dict[str, Tensor]) -> Equation:
    """The sum that may read zeros, as a tensor of its own, which `guarded` makes right."""
    name = fresh_name(f"{equation.result.name}_with_zeros", tensors)
    result = tensors[name] = replace(equation.result, name=name)
    return replace(with_name(equation, result), padded=True)


def guarded(
    equation: Equation, zeros: Tensor, factor: Read, graph: Graph, tensors: dict[str, Tensor]
) -> list[Equation]:
    """What follows once `zeros` is there: whether the factor is finite, and the sum itself where it is not."""
    source = tensors[factor.tensor]
    name = fresh_name(f"{source.name}_zero", tensors)
    # An infinity or no number, multiplied by zero, is no number, and so is every sum with it.
    zero = tensors[name] = Tensor(name, source.dtype, (), name)
    indices = tuple(f"i{d}" for d in range(len(source.shape)))
    read = Read(source.name, tuple(map(affine, indices)), source.dtype)
    extents = dict(zip(indices, source.shape, strict=True))
    summed = Equation(
        result=zero,
        indices=indices,
        domain=box(name, indices, extents, graph.sizes),
        target=(),
        body=Apply("mul", (read, Const(0.0, source.dtype)), source.dtype),
        reduce="sum",
        reduced=indices,
        span=equation.span,
        apart=True,
    )
    name = fresh_name(f"{source.name}_is_not_finite", tensors)
    flag = tensors[name] = Tensor(name, boolean, (), name)
    again = Read(zero.name, (), zero.dtype)
    raised = replace(fill(flag, Apply("ne", (again, again), boolean), equation.span), apart=True)
    left = equation.left
    every = dict(zip(left, equation.result.shape, strict=True))
    instances = box(equation.result.name, left, every, graph.sizes)
    return [summed, raised, replace(equation, base=zeros, only_if=flag, instances=instances, apart=True)]

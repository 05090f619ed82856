"""From a call in numpy.einsum's form to the kernel that computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyml.dtypes import DType, from_numpy
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_numpy.contraction import Contraction, contraction_of
from polyml.einsum_numpy.layout import Array, Decision, Settings, decide
from polyml.einsum_numpy.path import Path
from polyml.einsum_numpy.program import program_text
from polyml.einsum_numpy.subscripts import Labels, labels_of
from polyml.errors import DTypeError
from polyml.options import Options
from polyml.records import dataclass
from polyml.runtime.arguments import Layout, overlaps_itself
from polyml.runtime.signature import ArrayParameter, KernelSignature
from polyml.sets.affine import affine
from polyml.source import Source

if TYPE_CHECKING:
    from polyml.runtime.compiled import Compiled as Code
    from polyml.runtime.kernel import Kernel

__all__ = ["Compiled", "Planned", "compile_planned", "plan_call"]

FindPath = Callable[[Contraction], Path]


@dataclass(frozen=True, slots=True)
class Planned:
    """A call that a kernel takes.

    copied: per operand whether a native, contiguous copy goes to the kernel. shapes, strides: of the arrays that it sees, in elements; the result is the last.
    direct: `out` is what the kernel itself can fill.
    """

    contraction: Contraction
    text: str
    copied: tuple[bool, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    direct: bool


def plan_call(
    subscripts: str,
    arrays: Sequence[Array],
    out: Array | None,
    settings: Settings,
    find: FindPath,
    *,
    precise: bool = False,
) -> Planned | None:
    """How to compute a call; None: it is numpy.einsum's (element types that no kernel has, nothing to compute, views, odd memory).

    Raises:
        PolymlError, ValueError, TypeError: NumPy refuses the call.
    """
    labels = labels_of(subscripts, [a.ndim for a in arrays])
    if out is None and len(arrays) == 1 and set(labels.operands[0]) == set(labels.result):
        return None  # a view
    decision = decide(labels, arrays, out, settings)
    if 0 in decision.sizes.values() or (out is not None and overlaps_itself(out)):
        return None
    try:
        dtype, dtypes = from_numpy(decision.dtype), [from_numpy(a.dtype) for a in arrays]
    except DTypeError:
        return None
    if not all(_converts(kind, dtype) for kind in dtypes):
        return None
    write = functools.partial(program_text, blocked=not precise)
    return _plan(labels, arrays, out, decision, dtype, dtypes, lambda given: write(given, find(given)))


def _converts(source: DType, target: DType) -> bool:
    """Whether the language converts as NumPy does: not from floats to integers, from complex numbers to real ones, to bool."""
    return np.can_cast(source.numpy, target.numpy, "same_kind") or (source.is_integer and target.is_integer)


def _plan(
    labels: Labels,
    arrays: Sequence[Array],
    out: Array | None,
    decision: Decision,
    dtype: DType,
    dtypes: Sequence[DType],
    write: Callable[[Contraction], str],
) -> Planned | None:
    copied = tuple(not _usable(a) for a in arrays)
    seen = [np.empty(a.shape, kind.numpy) if copy else a for a, kind, copy in zip(arrays, dtypes, copied, strict=True)]
    shape = tuple(decision.sizes[label] for label in labels.result)
    strides = tuple(stride // dtype.itemsize for stride in decision.strides)
    direct = out is not None and out.dtype == dtype.numpy and out.flags.aligned
    dense = _dense(shape, strides) and all(stride % dtype.itemsize == 0 for stride in decision.strides)
    if not dense or (out is not None and not direct):
        if out is None:
            return None  # NumPy makes no such arrays
        strides, direct = _row_major(shape), False
    contraction = contraction_of(labels, seen, dtypes, decision.sizes, strides, dtype)
    return Planned(
        contraction=contraction,
        text=write(contraction),
        copied=copied,
        shapes=(*(a.shape for a in seen), shape),
        strides=(*(tuple(s // a.itemsize for s in a.strides) for a in seen), strides),
        direct=direct,
    )


def _usable(array: Array) -> bool:
    """Whether a kernel reads it where it is."""
    native = array.dtype.newbyteorder("=") == array.dtype
    return native and array.flags.aligned and all(stride % array.itemsize == 0 for stride in array.strides)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, run = [], 1
    for extent in reversed(shape):
        strides.append(run)
        run *= extent
    return tuple(reversed(strides))


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a block, each place once."""
    run = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != run:
            return False
        run *= extent
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A planned call and its kernel."""

    planned: Planned
    kernel: Kernel

    @property
    def at_once(self) -> bool:
        """Whether the kernel's entry point takes the caller's arrays as they are."""
        return not any(self.planned.copied)

    def run(self, arrays: Sequence[Array], out: Array | None) -> Any:
        """The result for arrays of the planned kind: a new array, a NumPy scalar, or `out`."""
        taken = [
            np.array(a, a.dtype.newbyteorder("="), order="C") if copy else a
            for a, copy in zip(arrays, self.planned.copied, strict=True)
        ]
        if out is None:
            return self.kernel.entry(*taken)
        if self.planned.direct and not any(np.may_share_memory(out, a) for a in taken):
            return self.kernel.entry(*taken, out=out)
        np.copyto(out, self.kernel.entry(*taken), casting="unsafe")  # what `casting` allows was decided before
        return out


def compile_planned(planned: Planned, options: Mapping[str, object]) -> Compiled:
    """Compiles its program.

    Raises:
        PolymlError: what the compiler refuses.
    """
    from polyml.runtime.cache.kernels import cached_kernel  # LLVM, when the first kernel is needed

    given = planned.contraction
    program = resolve(parse(Source(planned.text, "<einsum>")), {})
    key = []
    for term in given.terms:
        shape = tuple(given.sizes[label] for label in term.labels) or (1,)
        strides = tuple(term.strides.values()) or (1,)
        key.append(Layout(term.dtype, shape, None if strides == _row_major(shape) else strides))
    chosen = Options.make(**options)

    def compile() -> Code:
        from polyml.compiler.driver import compile_stages, lower_program  # isl, when it is not in the cache

        stages = lower_program(program, tuple(key), chosen)
        return compile_stages(program, stages, lambda inner: _seen(planned, inner))

    shown = (planned.shapes, planned.strides)
    return Compiled(planned, cached_kernel(program, tuple(key), chosen, compile, shown))


def _seen(planned: Planned, inner: KernelSignature) -> KernelSignature:
    """The kernel's signature as its caller sees it: the operands' own shapes and strides, and the result's."""
    parameters = []
    for k, parameter in enumerate(inner.parameters):
        shape, strides = planned.shapes[k], planned.strides[k]
        layout = None if strides == _row_major(shape) else strides
        assert isinstance(parameter, ArrayParameter), "internal: operands are arrays"
        parameters.append(replace(parameter, shape=tuple(map(affine, shape)), strides=layout))
    (result,) = inner.results
    shape, strides = planned.shapes[-1], planned.strides[-1]
    shown = replace(result, shape=tuple(map(affine, shape)), strides=None if strides == _row_major(shape) else strides)
    return replace(inner, parameters=tuple(parameters), results=(shown,))

"""Kernel: compiled code for one signature, as a Python callable; what kernels for CPUs (native.py) and GPUs (cuda/program.py) have in common. It brings no compiler with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from polyml.einsum_frontend.symbolic_ints import LARGEST_INT
from polyml.errors import PolymlError, ShapeError
from polyml.runtime.arguments import (
    Array,
    Prepared,
    Wanted,
    bind,
    prepare,
)
from polyml.runtime.fit import check_writes, fit, result_arrays
from polyml.runtime.foreign.arrays import through_numpy
from polyml.runtime.signature import (
    ArrayParameter,
    KernelSignature,
    ScalarParameter,
    SizeParameter,
)

__all__ = ["Kernel"]


class Kernel:
    """Compiled code for one signature. Called with other dtypes or shapes it raises; another layout is copied.

    signature: what it takes. entry: the function that calls go to, the fastest way in.
    """

    __slots__ = ("__weakref__", "_wanted", "entry", "signature")

    def __init__(self, signature: KernelSignature) -> None:
        self.signature = signature
        self._wanted = tuple(map(_wanted, signature.parameters))
        self.entry: Callable[..., Any] = self._fit_and_run

    def entry_before(self, slow: Callable[..., object]) -> Callable[..., Any]:
        """A function that runs the kernel when the arguments have exactly its signature, and else calls `slow` with them; `slow` itself where there is no such entry."""
        return slow

    def __call__(self, *args: object, **keywords: object) -> Any:
        return self.entry(*args, **keywords)

    def __reduce__(self) -> NoReturn:
        raise PolymlError(
            f"a kernel of {self.signature.name} is machine code in this process, and cannot be pickled or copied",
            hint="pickle the program: another process finds its kernels on disk, or compiles them",
        )

    def fitted(self, prepared: Sequence[Prepared]) -> list[Prepared] | None:
        """The arguments in its layouts, copies where need be; None when it is not for their sizes, or others suit them better."""
        sizes = self._sizes(prepared)
        if any(value.evaluate(sizes) < 0 for value in self.signature.requires):
            return None
        if not all(weighed.holds(sizes) for weighed in self.signature.suits):
            return None
        result: list[Prepared] = []
        for parameter, argument in zip(self.signature.parameters, prepared, strict=True):
            if not isinstance(parameter, ArrayParameter):
                result.append(argument)
                continue
            assert isinstance(argument.value, np.ndarray), "internal: an array argument"
            if argument.value.shape != tuple(extent.evaluate(sizes) for extent in parameter.shape):
                return None
            result.append(fit(parameter, argument, sizes))
        return result

    def run(self, prepared: Sequence[Prepared], out: object = None) -> Any:
        """Runs it on arguments that have its layouts.

        Raises:
            ArgumentError: a written argument is read-only, no array, or shares memory with itself or another argument; `out` does not fit.
            SubscriptError: an index check failed. MemoryError.
        """
        check_writes(self.signature.parameters, prepared)
        sizes = self._sizes(prepared)
        results = result_arrays(self.signature, sizes, out, prepared)
        self.execute(prepared, [made for made, _ in results], sizes)
        for parameter, argument in zip(self.signature.parameters, prepared, strict=True):
            if isinstance(parameter, ArrayParameter) and parameter.written and argument.copied:
                np.copyto(np.asarray(argument.given), argument.value)
        given: dict[str, object] = {}
        for result, (made, place) in zip(self.signature.results, results, strict=True):
            if place is not None and place is not made:
                np.copyto(np.asarray(place), made)
            given[result.name] = (
                made[()] if place is None else place
            )  # [()] makes a scalar of a 0-d array and nothing of others
        for parameter, argument in zip(self.signature.parameters, prepared, strict=True):
            given[parameter.name] = argument.given
        items = tuple(given[name] for name in self.signature.returned)
        return None if not items else items[0] if len(items) == 1 else items

    def execute(self, arguments: Sequence[Prepared], results: Sequence[Array], sizes: Mapping[str, int]) -> None:
        """Runs the code: reads and updates the arguments' arrays, and fills the results.

        Raises:
            SubscriptError: an index check failed. MemoryError.
        """
        raise NotImplementedError

    # -- slow path ---------------------------------------------------------------------------------------------------------------

    def _fit_and_run(self, *args: object, **keywords: object) -> object:
        """Any call of this kernel alone: arguments are brought to its layouts, and others than its sizes are refused."""
        given = through_numpy(self.entry, args, keywords)
        if given is not NotImplemented:
            return given
        values, out = bind(self.signature.name, [p.name for p in self.signature.parameters], args, keywords)
        prepared = [prepare(wanted, value) for wanted, value in zip(self._wanted, values, strict=True)]
        sizes = self._sizes(prepared)
        if any(value.evaluate(sizes) < 0 for value in self.signature.requires):
            numbers = ", ".join(f"{name} = {value}" for name, value in sizes.items())
            raise ShapeError(f"this kernel is not compiled for {numbers}", hint="call the program, which has others")
        fitted: list[Prepared] = []
        for parameter, argument in zip(self.signature.parameters, prepared, strict=True):
            fitted.append(fit(parameter, argument, sizes) if isinstance(parameter, ArrayParameter) else argument)
            if isinstance(parameter, SizeParameter):
                _check_int(parameter, argument.value)
        return self.run(fitted, out)

    def _sizes(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, source in self.signature.size_sources().items():
            value = prepared[source.position].value
            if source.dimension is None:
                assert isinstance(value, int), "internal: a size is an int"
                sizes[name] = value
            else:
                assert isinstance(value, np.ndarray), "internal: a size is the extent of an array"
                sizes[name] = (value.shape[source.dimension] - source.offset) // source.factor
        return sizes

    # -- looking -----------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> str:
        """The host program: what is allocated, launched and checked, in order."""
        raise NotImplementedError

    @property
    def llvm(self) -> str:
        """The LLVM IR of the regions, before LLVM's passes.

        Raises:
            PolymlError: the code is for a GPU.
        """
        raise PolymlError(f"{self.signature.name} is not compiled by LLVM", hint='its text: show("cuda")')

    @property
    def assembly(self) -> str:
        """The machine code of the regions, as text.

        Raises:
            PolymlError: the code is for a GPU.
        """
        raise PolymlError(f"{self.signature.name} is not compiled by LLVM", hint='its text: show("cuda")')

    def __repr__(self) -> str:
        return f"<polyml.Kernel {self.signature}>"


def _check_int(parameter: SizeParameter, value: object) -> None:
    assert isinstance(value, int), "internal: an int argument"
    if parameter.value not in (None, value):
        raise ShapeError(f"argument {parameter.name} is {value}, and this kernel is compiled for {parameter.value}")
    if parameter.value is None and abs(value) > LARGEST_INT:
        raise ShapeError(f"argument {parameter.name} is {value}, and this kernel takes up to {LARGEST_INT}")


def _wanted(parameter: ArrayParameter | ScalarParameter | SizeParameter) -> Wanted:
    match parameter:
        case ArrayParameter(name=name, dtype=dtype, shape=shape):
            return Wanted(name, dtype, len(shape))
        case ScalarParameter(name=name, dtype=dtype):
            return Wanted(name, dtype, None)
        case SizeParameter(name=name):
            return Wanted(name, None, None)

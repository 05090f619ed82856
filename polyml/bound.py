"""`f.bind(w=..., b=...)`: a program some of whose arguments never change.

What they alone decide is computed once per shape of the other arguments: equations of constants, and the panels that operands are packed into.
Both kernels come from the disk cache where they are there; a call then goes to the kernel's own entry point, with the constants in front.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from polyml.einsum_frontend.symbolic_ints import is_large, symbolic_ints
from polyml.einsum_frontend.syntax import Program
from polyml.errors import ArgumentError
from polyml.options import Options
from polyml.runtime.arguments import Array, Prepared, Wanted, layout_of, prepare
from polyml.runtime.dispatch import Dispatcher, wanted_of
from polyml.runtime.foreign.arrays import viewed
from polyml.runtime.keys import Key
from polyml.runtime.signature import KernelSignature, ScalarParameter, SizeParameter
from polyml.shown import counted

if TYPE_CHECKING:
    from polyml.compiler.constants import BoundCode
    from polyml.compiler.driver import Stages
    from polyml.graph.ir import Graph
    from polyml.lowered import Lowered
    from polyml.runtime.kernel import Kernel

__all__ = ["Bound", "prepared_constants", "refuse_unnamed", "with_more"]

ALIGNMENT = 64
"""Of what is computed once, in bytes: a cache line, and the widest vector."""


class Bound(Dispatcher):
    """A program with constant arguments: called with the others.

    Args:
        values: of the constants, by name. They are copied: what happens to the arrays later changes nothing.

    Raises:
        PolymlError: no such parameter, or a wrong element type or rank; at a call: a constant that the program updates in place.
    """

    def __init__(self, program: Program, options: Options, values: Mapping[str, object]) -> None:
        self.program, self.options = program, options
        self._bound = prepared_constants(program, values)
        wanted = tuple(w for w in wanted_of(program) if w.name not in self._bound)
        large = any(is_large(constant.value) for constant in self._bound.values())
        ints = frozenset[str]() if large else symbolic_ints(program) - self._bound.keys()
        super().__init__(program.name, wanted, ints, self._compile_bound)
        self.__name__ = program.name

    def __reduce__(self) -> tuple[type[Bound], tuple[object, ...]]:
        """A copy fills its own constants."""
        return Bound, (self.program, self.options, _values_of(self._bound))

    def bind(self, /, *unnamed: object, **constants: object) -> Bound:
        """The program with these constant arguments too.

        Raises:
            PolymlError: as `Einsum.bind`, or one of them is bound already.
        """
        refuse_unnamed(self.program, unnamed)
        return Bound(self.program, self.options, with_more(self.program, _values_of(self._bound), constants))

    def trace(self, *args: object, **keywords: object) -> Graph:
        """The graph of the calls with these arguments, rewritten: what the constants alone decide has left it."""
        return self._stages(self.key_of(*args, **keywords)).graph

    def lower(self, *args: object, **keywords: object) -> Lowered:
        """The calls with these arguments at every stage, down to loops: what the constants alone decide has left them."""
        from polyml.lowered import LoweredCalls

        return LoweredCalls(self.program, self._stages(self.key_of(*args, **keywords)))

    def compile(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs."""
        return self.kernel_for(*args, **keywords)

    def explain(self, *args: object, **keywords: object) -> str:
        """What was chosen for calls with these arguments, what was refused and why, and what is filled once."""
        return self.lower(*args, **keywords).explain()

    def _stages(self, key: Key) -> Stages:
        from polyml.compiler.constants import lower_bound

        whole = _whole_key(self.program, key, self._bound)
        return lower_bound(self.program, whole, self.options, self._bound.keys()).stages

    def _compile_bound(self, key: Key) -> Kernel:
        from polyml.runtime.cache.kernels import cached_kernel

        whole = _whole_key(self.program, key, self._bound)

        @functools.cache
        def code() -> BoundCode:
            from polyml.compiler.constants import lower_bound  # isl, when the kernels are not in the cache

            return lower_bound(self.program, whole, self.options, self._bound.keys())

        names = tuple(sorted(self._bound))
        kernel = cached_kernel(
            self.program, whole, self.options, lambda: code().compile_calls(), ("calls with constants", names)
        )
        missing = [p for p in kernel.signature.parameters if p.name not in self._names and p.name not in self._bound]
        made: dict[str, Array] = {}
        if missing:
            shown = ("constants", names)
            once = cached_kernel(self.program, whole, self.options, lambda: code().compile_once(), shown)
            made = _run_once(once, self._bound)
        count = len(kernel.signature.parameters) - len(self._parameters)
        constants = []
        for parameter in kernel.signature.parameters[:count]:
            found = made.get(parameter.name)
            constants.append(self._bound[parameter.name] if found is None else Prepared(found, found, copied=False))
        return _BoundKernel(kernel, constants)  # type: ignore[return-value]  # what a dispatcher asks of kernels it has

    def __repr__(self) -> str:
        return f"<polyml.einsum program {self.program.name} with constant {', '.join(self._bound)}>"


class _BoundKernel:
    """A kernel whose first arguments are given: what a Dispatcher needs of one. signature: of the arguments that are left."""

    def __init__(self, kernel: Kernel, constants: Sequence[Prepared]) -> None:
        self.kernel, self.constants = kernel, tuple(constants)
        # What the entry point takes at once: Python's numbers for scalars.
        self.values = [
            c.value.item() if isinstance(p, ScalarParameter) and isinstance(c.value, np.ndarray) else c.value
            for p, c in zip(kernel.signature.parameters, constants, strict=False)
        ]
        parameters = kernel.signature.parameters[len(constants) :]
        self.signature: KernelSignature = replace(kernel.signature, parameters=parameters)
        self.entry = self.entry_before(self._slow)

    def entry_before(self, slow: Callable[..., object]) -> Callable[..., Any]:
        """A function of the other arguments that runs the kernel when they fit exactly, and else calls `slow` with them."""
        count = len(self.constants)

        def others(*args: object, **keywords: object) -> object:
            return slow(*args[count:], **keywords)

        call: Callable[..., Any] = self.kernel.entry_before(others)
        for value in self.values:  # methods of methods: each puts one argument in front, without a Python frame
            call = MethodType(call, value)
        return call

    def __call__(self, *args: object, **keywords: object) -> Any:
        return self.entry(*args, **keywords)

    def run(self, prepared: Sequence[Prepared], out: object = None) -> Any:
        return self.kernel.run([*self.constants, *prepared], out)

    def _slow(self, *args: object, **keywords: object) -> object:
        return self.kernel(*self.values, *args, **keywords)

    def __repr__(self) -> str:
        return f"<polyml.Kernel {self.signature}>"


def _values_of(bound: Mapping[str, Prepared]) -> dict[str, object]:
    return {name: constant.value for name, constant in bound.items()}


def with_more(program: Program, bound: Mapping[str, object], constants: Mapping[str, object]) -> dict[str, object]:
    """What is bound, and more constants.

    Raises:
        ArgumentError: there are none, or one is bound already.
    """
    if not constants:
        left = [w.name for w in wanted_of(program) if w.name not in bound]
        raise _nothing_to_bind(program, left)
    for name in constants:
        if name in bound:
            hint = f"bind another value to the program itself, which has no {name} yet"
            raise ArgumentError(f"{program.name} has {name} bound already", hint=hint)
    return {**bound, **constants}


def refuse_unnamed(program: Program, unnamed: Sequence[object]) -> None:
    """Refuses constants without the names of their parameters.

    Raises:
        ArgumentError: there are some.
    """
    if unnamed:
        names = ", ".join(f"{parameter.name}=.." for parameter in program.parameters)
        message = f"{program.name}.bind got {counted(len(unnamed), 'constant')} without a name"
        raise ArgumentError(message, hint=f"name what is constant: bind({names})")


def _nothing_to_bind(program: Program, parameters: Sequence[str]) -> ArgumentError:
    example = parameters[0] if parameters else "w"
    return ArgumentError(f"{program.name}.bind got no arguments", hint=f"name the constants, as in bind({example}=...)")


def prepared_constants(program: Program, values: Mapping[str, object]) -> dict[str, Prepared]:
    """The constants as a kernel takes them, in the order of the parameters, in memory of their own."""
    wanted = {w.name: w for w in wanted_of(program)}
    unknown = [name for name in values if name not in wanted]
    if unknown:
        names = ", ".join(wanted)
        raise ArgumentError(f"{program.name} has no parameter {unknown[0]}", hint=f"its parameters: {names}")
    if not values:
        raise _nothing_to_bind(program, list(wanted))
    return {name: _frozen(wanted[name], values[name]) for name in wanted if name in values}


def _frozen(wanted: Wanted, value: object) -> Prepared:
    found = prepare(wanted, viewed(value))
    if not isinstance(found.value, np.ndarray):
        return found
    array = _aligned(found.value.shape, found.value.dtype)
    np.copyto(array, found.value)
    array.flags.writeable = False
    return Prepared(array, array, copied=True)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    memory = np.empty(prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _whole_key(program: Program, key: Key, bound: Mapping[str, Prepared]) -> Key:
    """The key of the program itself."""
    rest = iter(key)
    whole = []
    for wanted in wanted_of(program):
        if wanted.name not in bound:
            whole.append(next(rest))
            continue
        value = bound[wanted.name].value
        if isinstance(value, np.ndarray):
            whole.append(None if wanted.rank is None else layout_of(value))
        else:
            whole.append(value)
    return tuple(whole)


def _run_once(kernel: Kernel, bound: Mapping[str, Prepared]) -> dict[str, Array]:
    """The results of the kernel, aligned."""
    given = [bound[p.name] for p in kernel.signature.parameters if not isinstance(p, SizeParameter)]
    made = {
        result.name: _aligned(tuple(extent.constant for extent in result.shape), result.dtype.numpy)
        for result in kernel.signature.results
    }
    kernel.run(given, tuple(made.values()))
    for array in made.values():
        array.flags.writeable = False
    return made

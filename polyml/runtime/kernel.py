"""Kernel: compiled code for one signature, as a Python callable."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyml.codegen.llvm.machine import Machine, assembly, compile_object, load_object
from polyml.codegen.loops import Function
from polyml.debug import stage
from polyml.errors import ShapeError, SubscriptError
from polyml.graph.plan import Plan
from polyml.runtime.arguments import (
    Prepared,
    Wanted,
    bind,
    prepare,
)
from polyml.runtime.entry import emit_entry, entry_objects
from polyml.runtime.fit import fit, result_arrays, separate
from polyml.runtime.host import emit_host
from polyml.runtime.load import builtin_function, compile_plainly
from polyml.runtime.signature import NO_MEMORY, OK, ArrayParameter, KernelSignature, ScalarParameter, SizeParameter
from polyml.runtime.support import parallel_limited, support
from polyml.target import Target

__all__ = ["Code", "Kernel", "load_kernel"]


@dataclass(frozen=True, slots=True)
class Code:
    """The loaded code of a kernel and the text that it came from. owners: what keeps it loaded. entry: 0 where there is no entry point."""

    regions: str
    program: str
    machine: Machine
    host: int
    entry: int
    owners: tuple[object, ...]


def load_kernel(
    signature: KernelSignature,
    plan: Plan,
    functions: Sequence[Function],
    regions: str,
    *,
    target: Target | None = None,
    threads: int | None = None,
    seen: KernelSignature | None = None,
) -> Kernel:
    """Compiles and loads the code of a program.

    Args:
        seen: what callers pass and get, where that is the same memory as in `signature` in other shapes and strides.
        functions: of region 0, 1, ... regions: the LLVM module text that defines them.
        target: a machine whose code runs here; None: this one.
        threads: the most that parallel loops may use; None: what the process has set.
    """
    chosen = target or Target.host()
    assert chosen.runs_here, "internal: loading code for a machine that is not this one"
    machine = Machine(chosen.name, chosen.triple, chosen.cpu, chosen.features)
    shared = support()
    symbols = dict(shared.symbols)
    owners: list[object] = [shared]
    if threads is not None:
        symbols["polyml_parallel"], owner = parallel_limited(threads)
        owners.append(owner)
    names = tuple(f.name for f in functions)
    with stage("llvm"):
        loaded = load_object(compile_object(regions, machine), names, symbols)
    symbols |= loaded.addresses
    with stage("entry"):
        run, entry = f"{signature.name}_run", f"{signature.name}_entry"
        host = emit_host(signature, plan, functions, name=run)
        host_code = load_object(compile_plainly(host), (run,), symbols)
        owners += [loaded, host_code]
        program, entry_address = host, 0
        if shared.header is not None:
            text = emit_entry(seen or signature, host=run, header=shared.header, name=entry)
            symbols |= host_code.addresses
            entry_code = load_object(compile_plainly(text), (entry,), symbols)
            owners.append(entry_code)
            program, entry_address = f"{host}\n{text}", entry_code.addresses[entry]
    return Kernel(
        seen or signature, plan, Code(regions, program, machine, host_code.addresses[run], entry_address, tuple(owners))
    )


class Kernel:
    """Compiled code for one signature. Called with other dtypes or shapes it raises; another layout is copied.

    signature, plan: what it takes, and its host program. entry: the function that calls go to, the fastest way in.
    """

    __slots__ = ("__weakref__", "_host", "_wanted", "code", "entry", "plan", "signature")

    def __init__(self, signature: KernelSignature, plan: Plan, code: Code) -> None:
        self.signature, self.plan, self.code = signature, plan, code
        self._host = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(code.host)
        self._wanted = tuple(map(_wanted, signature.parameters))
        self.entry = self.entry_before(self._fit_and_run)

    def entry_before(self, slow: Callable[..., object]) -> Callable[..., Any]:
        """A function that runs the kernel when the arguments have exactly its signature, and else calls `slow` with them."""
        if not self.code.entry:
            return slow
        objects = entry_objects(self.signature, slow, self._fault)
        return builtin_function(self.signature.name, self.code.entry, (*objects, self.code))

    def __call__(self, *args: object, **keywords: object) -> Any:
        return self.entry(*args, **keywords)

    def run(self, prepared: Sequence[Prepared], out: object = None) -> Any:
        """Runs it on arguments that have its layouts.

        Raises:
            ArgumentError: a written argument is read-only, no array, or shares memory with itself or another written one; `out` does not fit.
            SubscriptError: an index check failed. MemoryError.
        """
        arguments = separate(self.signature.parameters, prepared)
        sizes = self._sizes(arguments)
        results = result_arrays(
            self.signature, sizes, out, [a.value for a in arguments if isinstance(a.value, np.ndarray)]
        )
        buffers = [a.value for a in arguments if isinstance(a.value, np.ndarray)] + [made for made, _ in results]
        addresses = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        numbers = (ctypes.c_int64 * max(1, len(sizes)))(*(sizes[name] for name in self.signature.sizes))
        status = self._host(addresses, numbers)
        if status != OK:
            self._fault(status)
        for parameter, argument in zip(self.signature.parameters, arguments, strict=True):
            if isinstance(parameter, ArrayParameter) and parameter.written and argument.copied:
                np.copyto(np.asarray(argument.given), argument.value)
        given: dict[str, object] = {}
        for result, (made, place) in zip(self.signature.results, results, strict=True):
            if place is not None and place is not made:
                np.copyto(np.asarray(place), made)
            given[result.name] = (
                made[()] if place is None else place
            )  # [()] makes a scalar of a 0-d array and nothing of others
        for parameter, argument in zip(self.signature.parameters, arguments, strict=True):
            given[parameter.name] = argument.given
        items = tuple(given[name] for name in self.signature.returned)
        return None if not items else items[0] if len(items) == 1 else items

    # -- slow path ---------------------------------------------------------------------------------------------------------------

    def _fit_and_run(self, *args: object, **keywords: object) -> object:
        """Any call of this kernel alone: arguments are brought to its layouts, and others than its sizes are refused."""
        values, out = bind(self.signature.name, [p.name for p in self.signature.parameters], args, keywords)
        prepared = [prepare(wanted, value) for wanted, value in zip(self._wanted, values, strict=True)]
        sizes = self._sizes(prepared)
        fitted: list[Prepared] = []
        for parameter, argument in zip(self.signature.parameters, prepared, strict=True):
            fitted.append(fit(parameter, argument, sizes) if isinstance(parameter, ArrayParameter) else argument)
            if isinstance(parameter, SizeParameter) and parameter.value not in (None, argument.value):
                raise ShapeError(
                    f"argument {parameter.name} is {argument.value}, and this kernel is compiled for {parameter.value}"
                )
        return self.run(fitted, out)

    def _sizes(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, (position, dimension) in self.signature.size_sources().items():
            value = prepared[position].value
            if dimension is None:
                assert isinstance(value, int), "internal: a size is an int"
                sizes[name] = value
            else:
                assert isinstance(value, np.ndarray), "internal: a size is the extent of an array"
                sizes[name] = value.shape[dimension]
        return sizes

    def _fault(self, status: int) -> object:
        if status == NO_MEMORY:
            raise MemoryError(f"{self.signature.name}: no memory for temporary arrays")
        raise SubscriptError(self.signature.checks[status - 1])

    # -- looking -----------------------------------------------------------------------------------------------------------------

    @property
    def llvm(self) -> str:
        """The LLVM IR of the regions, before LLVM's passes."""
        return self.code.regions

    @property
    def assembly(self) -> str:
        """The machine code of the regions, as text."""
        return assembly(self.code.regions, self.code.machine)

    def __repr__(self) -> str:
        return f"<polyml.Kernel {self.signature}>"


def _wanted(parameter: ArrayParameter | ScalarParameter | SizeParameter) -> Wanted:
    match parameter:
        case ArrayParameter(name=name, dtype=dtype, shape=shape):
            return Wanted(name, dtype, len(shape))
        case ScalarParameter(name=name, dtype=dtype):
            return Wanted(name, dtype, None)
        case SizeParameter(name=name):
            return Wanted(name, None, None)

"""Dispatch: from the arguments of a call to the kernel for their dtypes, shapes and layout, compiling it at the first such call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyml.einsum_frontend.syntax import Program
from polyml.runtime.arguments import Layout, Prepared, Wanted, bind, layout_of, prepare
from polyml.runtime.foreign import through_numpy, viewed

if TYPE_CHECKING:
    from polyml.runtime.kernel import Kernel  # brings LLVM with it, which `import polyml` does not need

__all__ = ["COMPILE_LOCK", "Dispatcher", "Key", "wanted_of"]

COMPILE_LOCK = threading.RLock()
"""Held while anything compiles: isl's context and LLVM's global state are not safe to share. A fork waits for it, so that the child finds it free."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=COMPILE_LOCK.acquire, after_in_parent=COMPILE_LOCK.release, after_in_child=COMPILE_LOCK.release
    )

Key = tuple[Layout | int | None, ...]
"""What a kernel is for, per parameter: a layout; the value of an int that is specialized; None for scalars and symbolic ints."""

FRONT, MOST = 4, 256


def wanted_of(program: Program) -> tuple[Wanted, ...]:
    """The parameters of a program as the argument checks see them."""
    return tuple(Wanted(p.name, p.dtype, None if p.shape is None else len(p.shape), p.span) for p in program.parameters)


class Dispatcher:
    """A callable that owns the kernels of one program.

    A call goes to the entry point of the kernel that was found last; when that does not fit, to the next, through the `FRONT` most recent ones; then to Python, which
    looks among all (`MOST`; the oldest is dropped), or compiles.

    Python looks `__call__` up on the type, so each dispatcher gets a type of its own whose `__call__` is the front kernel's function: no
    Python frame stands between the caller and the kernel.

    Args:
        parameters: in call order. symbolic: the int parameters that are not specialized. compile: the kernel for a key.
    """

    def __new__(cls, *args: object, **keywords: object) -> Self:
        own = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        return object.__new__(own)

    def __init__(
        self, name: str, parameters: Sequence[Wanted], symbolic: frozenset[str], compile: Callable[[Key], Kernel]
    ) -> None:
        self._program_name = name
        self._parameters = tuple(parameters)
        self._names = tuple(p.name for p in parameters)
        self._symbolic = symbolic
        self._compile = compile
        self._kernels: dict[Key, Kernel] = {}
        self._front: tuple[Kernel, ...] = ()
        self._aim()

    def __call__(self, *args: object, **keywords: object) -> Any:
        """Runs the program: results as new arrays, or in `out=`."""
        return self._dispatch(*args, **keywords)  # replaced in each dispatcher's own type

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those compiled so far, the oldest first."""
        return tuple(self._kernels.values())

    def kernel_for(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs, compiled if need be."""
        prepared, _ = self._prepare(args, keywords)
        return self._find(self._key(prepared))

    def key_of(self, *args: object, **keywords: object) -> Key:
        """What a kernel for these arguments is specialized to."""
        prepared, _ = self._prepare(args, keywords)
        return self._key(prepared)

    def _dispatch(self, *args: object, **keywords: object) -> object:
        given = through_numpy(self, args, keywords)
        if given is not NotImplemented:
            return given
        prepared, out = self._prepare(args, keywords)
        kernel = self._find(self._key(prepared))
        if kernel not in self._front:
            self._aim(kernel)
        return kernel.run(prepared, out)

    def _prepare(self, args: Sequence[object], keywords: dict[str, object]) -> tuple[list[Prepared], object]:
        values, out = bind(self._program_name, self._names, args, keywords)
        return [prepare(wanted, viewed(value)) for wanted, value in zip(self._parameters, values, strict=True)], out

    def _key(self, prepared: Sequence[Prepared]) -> Key:
        key: list[Layout | int | None] = []
        for wanted, argument in zip(self._parameters, prepared, strict=True):
            match argument.value:
                case np.ndarray() as array:
                    key.append(None if wanted.rank is None else layout_of(array))
                case int() as value:
                    key.append(None if wanted.name in self._symbolic else value)
        return tuple(key)

    def _find(self, key: Key) -> Kernel:
        found = self._kernels.get(key)
        if found is not None:
            return found
        with COMPILE_LOCK:
            found = self._kernels.get(key)  # another thread may have been faster
            if found is None:
                found = self._compile(key)
                self._kernels[key] = found
                while len(self._kernels) > MOST:
                    self._kernels.pop(next(iter(self._kernels)))
            return found

    def _aim(self, kernel: Kernel | None = None) -> None:
        """Puts `kernel` in front, and its chain into the type."""
        with COMPILE_LOCK:
            if kernel is not None:
                self._front = (kernel, *(k for k in self._front if k is not kernel))[:FRONT]
            call: Callable[..., object] = self._dispatch
            for behind in reversed(self._front):
                call = behind.entry_before(call)
            type.__setattr__(type(self), "__call__", call)

"""Dispatch: from the arguments of a call to the kernel for their dtypes, shapes and layout, compiling it at the first such call."""

from __future__ import annotations

import atexit
import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyml.collection import collector_rests
from polyml.dtypes import from_numpy
from polyml.einsum_frontend.any_size import AnyShapes
from polyml.einsum_frontend.symbolic_ints import is_large
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.forks import wait_at_forks
from polyml.runtime.arguments import AnyInt, AnySize, Layout, Prepared, Wanted, bind, layout_of, prepare
from polyml.runtime.foreign.arrays import through_numpy, viewed
from polyml.runtime.keys import FEW_VALUES, KernelTable, Key, short_sizes, sizes_of, varying

if TYPE_CHECKING:
    from polyml.runtime.kernel import Kernel

__all__ = ["COMPILE_LOCK", "Dispatcher", "shown_signature", "wanted_of"]

COMPILE_LOCK = threading.RLock()
"""Held while anything compiles: isl's context and LLVM's global state are not safe to share."""

wait_at_forks(COMPILE_LOCK, first=True)

atexit.register(COMPILE_LOCK.acquire)
"""A daemon thread does not compile on while the process takes LLVM and isl down; the thread that exits still may."""

FRONT, SPECIAL = 4, 8


def wanted_of(program: Program) -> tuple[Wanted, ...]:
    """The parameters of a program as the argument checks see them."""
    return tuple(Wanted(p.name, p.dtype, None if p.shape is None else len(p.shape), p.span) for p in program.parameters)


def shown_signature(parameters: Sequence[str]) -> inspect.Signature:
    """The `__signature__` of a program, which `inspect`, `help` and editors show."""
    names = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in parameters]
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature(names if "out" in parameters else [*names, out])


class Dispatcher:
    """A callable that owns the kernels of one program.

    Calls that differ in symbolic ints alone share a kernel, where what it assumes of them holds (`KernelTable`).

    A call goes to the entry point of the kernel that was found last; when that does not fit, to the next, through the `FRONT` most recent ones; then to Python, which
    looks among all, or compiles. A kernel for any sizes comes first where it is asked for, and serves new shapes
    where there are `SPECIAL` kernels already (of those sizes that had more than a few values); shapes that it is not for get kernels of their own.
    Where rows or windows are short, the lengths of the first `FEW_VALUES` kinds of them are numbers in kernels that come before that for all.

    Python looks `__call__` up on the type, so each dispatcher gets a type of its own whose `__call__` is the front kernel's function: no
    Python frame stands between the caller and the kernel.

    Args:
        parameters: in call order. symbolic: the int parameters that are not specialized. compile: the kernel for a key.
        general: the shapes of a kernel for any sizes, where there can be one; asked: it is asked for, and the program is refused where it cannot be compiled.
        short: the lengths of short rows and windows may be numbers in it nevertheless.
    """

    def __new__(cls, *args: object, **keywords: object) -> Self:
        own = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        return object.__new__(own)

    def __init__(
        self,
        name: str,
        parameters: Sequence[Wanted],
        symbolic: frozenset[str],
        compile: Callable[[Key], Kernel],
        general: AnyShapes | None = None,
        *,
        asked: bool = False,
        short: bool = False,
    ) -> None:
        self._program_name = name
        self._parameters = tuple(parameters)
        self._names = tuple(p.name for p in parameters)
        self.__signature__ = shown_signature(self._names)
        self._symbolic = symbolic
        self._compile = compile
        self._general, self._asked, self._takes_short = general, asked, short
        self._short: tuple[dict[str, int], ...] = ()  # the lengths, of those, that there are kernels for ..
        self._any_length = False  # .. and whether there is the one for all
        self._table = KernelTable(self._names)
        self._front: tuple[Kernel, ...] = ()
        self._aim()

    def __call__(self, *args: object, **keywords: object) -> Any:
        """Runs the program, compiled at the first call with these dtypes, shapes and layouts.

        Args:
            args, keywords: one for each parameter: arrays of the declared dtype and rank, any strides (what speaks DLPack is used where it is, lists are
                converted); numbers for scalars and ints. out: an array, or a tuple of one for each new result, of the results' dtype and shape.

        Returns:
            The results in order; a single one without a tuple, None without any. New ones are contiguous, and those of no dimension scalars; parameters that
            are assigned are updated in place, and returned as they were given.

        Raises:
            PolymlError: arguments that do not fit (`DTypeError`, `ShapeError`, `ArgumentError`), an index in a tensor that is out of range (`SubscriptError`, an
                IndexError), or what is wrong with the program.
            MemoryError: there is no room; what is updated in place is undefined then.
        """
        return self._dispatch(*args, **keywords)  # replaced in each dispatcher's own type

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those compiled so far, the oldest first."""
        return tuple(self._table)

    def kernel_for(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs, compiled if need be."""
        prepared, _ = self._prepare(args, keywords)
        return self._choose(prepared)[0]

    def key_of(self, *args: object, **keywords: object) -> Key:
        """What a kernel for these arguments is specialized to."""
        prepared, _ = self._prepare(args, keywords)
        key = self._key(prepared)
        return self._key(prepared, self._general_for(key)) if self._asked else key

    def _dispatch(self, *args: object, **keywords: object) -> object:
        given = through_numpy(self, args, keywords)
        if given is not NotImplemented:
            return given
        prepared, out = self._prepare(args, keywords)
        kernel, fitting = self._choose(prepared)
        if kernel not in self._front:
            self._aim(kernel)
        return kernel.run(fitting, out)

    def _choose(self, prepared: Sequence[Prepared]) -> tuple[Kernel, Sequence[Prepared]]:
        """The kernel for these arguments, and they as it takes them."""
        key = self._key(prepared)
        general = self._general_for(key)
        if general is not None:
            kernel = self._find_general(self._key(prepared, general), key)
            fitting = None if kernel is None else kernel.fitted(prepared)
            if kernel is not None and fitting is not None:
                if self._takes_short and self._general is not None:
                    self._remember_short(self._general, general, key)
                return kernel, fitting
        return self._find(key), prepared

    def _general_for(self, key: Key) -> AnyShapes | None:
        """The shapes of a kernel for any sizes where this call has one: the one that is asked for, or the one of a program that has seen many shapes, for those sizes that vary. None where an int is too large beside sizes."""
        whole = self._general  # another thread's call may find out that there is none
        if whole is None or any(map(is_large, key)):
            return None
        if self._asked:
            numbers = self._numbers(whole, key)
            left = frozenset(whole.names).difference(numbers)
            return (whole.only(left) if numbers else None) or whole
        if not self._is_one_of_many(key):
            return None
        return whole.only(varying(whole, self._table.keys(), key))

    def _numbers(self, general: AnyShapes, key: Key) -> Collection[str]:
        """The sizes that are numbers although any are asked for: of short rows and windows that there is a kernel for, or may be one: of the first few kinds, until a call needs the kernel for all."""
        sizes = sizes_of(general, key).items()
        found = next((short for short in self._short if short.items() <= sizes), None)
        if found is None and self._takes_short and not self._any_length and len(self._short) < FEW_VALUES:
            return short_sizes(general, key)
        return found or ()

    def _remember_short(self, all_sizes: AnyShapes, general: AnyShapes, key: Key) -> None:
        """That there is a kernel in which the sizes of `general` are symbolic."""
        if general.names == all_sizes.names:
            self._any_length = True
            return
        short = {name: n for name, n in sizes_of(all_sizes, key).items() if name not in general.names}
        with COMPILE_LOCK:
            if short not in self._short:
                self._short += (short,)

    def _is_one_of_many(self, key: Key) -> bool:
        """Whether nobody loses by a kernel for any sizes here: the shape is new as others were before, and nothing would be copied for it."""
        plain = all(not isinstance(layout, Layout) or layout.strides is None for layout in key)
        return plain and len(self._table) >= SPECIAL and self._table.find(key) is None

    def _find_general(self, key: Key, special: Key) -> Kernel | None:
        try:
            return self._find(key)
        except PolymlError:
            if any(isinstance(layout, AnyInt) for layout in special):
                self._find(special)  # what is wrong may be the int
            if any(isinstance(layout, Layout) and 0 in layout.shape for layout in special):
                return None  # an empty dimension may be right where a small one is not, and says nothing about others
            if self._asked:
                raise
            self._general = None  # the program needs numbers, and is not asked again
            return None

    def _prepare(self, args: Sequence[object], keywords: dict[str, object]) -> tuple[list[Prepared], object]:
        values, out = bind(self._program_name, self._names, args, keywords)
        return [prepare(wanted, viewed(value)) for wanted, value in zip(self._parameters, values, strict=True)], out

    def _key(self, prepared: Sequence[Prepared], general: AnyShapes | None = None) -> Key:
        key: list[Layout | AnySize | AnyInt | int | None] = []
        large = any(is_large(argument.value) for argument in prepared)
        for position, (wanted, argument) in enumerate(zip(self._parameters, prepared, strict=True)):
            shape = () if general is None else general.shapes[position]
            match argument.value:
                case np.ndarray() as array if any(extent is not None for extent in shape):
                    extents = (n if e is None else e for n, e in zip(array.shape, shape, strict=True))
                    some = tuple(
                        max(1, number) for number in array.shape
                    )  # an empty dimension is an example of nothing
                    key.append(AnySize(from_numpy(array.dtype), tuple(extents), some))
                case np.ndarray() as array:
                    key.append(None if wanted.rank is None else layout_of(array))
                case int() as value:
                    if general is not None and wanted.name in general.names:
                        key.append(None)
                        continue
                    key.append(AnyInt(value) if wanted.name in self._symbolic and not large else value)
        return tuple(key)

    def _find(self, key: Key) -> Kernel:
        found = self._table.find(key)
        if found is not None:
            return found
        with COMPILE_LOCK:
            found = self._table.find(key)  # another thread may have been faster
            if found is None:
                key = self._table.to_compile(key)
                with collector_rests():
                    found = self._compile(key)
                self._table.keep(key, found)
            return found

    def _aim(self, kernel: Kernel | None = None) -> None:
        """Puts `kernel` in front, and its chain into the type."""
        with COMPILE_LOCK:
            if kernel is not None:
                self._front = (kernel, *(k for k in self._front if k is not kernel))[:FRONT]
            if self._takes_short:  # the kernel for all serves short ones too, and is slower
                self._front = tuple(sorted(self._front, key=lambda k: len(k.signature.sizes)))
            call: Callable[..., object] = self._dispatch
            for behind in reversed(self._front):
                call = behind.entry_before(call)
            type.__setattr__(type(self), "__call__", call)

"""`polyml.einsum`: the one entry of the library, in its three forms, and the callable that it makes.

The compiler behind it (isl, LLVM) is imported when the first program is compiled, so that `import polyml` stays light.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy import einsum as numpy_einsum  # see einsum_numpy/calls.py
from numpy import einsum_path as numpy_einsum_path

from polyml.bound import Bound, refuse_unnamed
from polyml.einsum_frontend.any_size import AnyShapes, any_shapes
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.source import program_from_function, program_from_text
from polyml.einsum_frontend.symbolic_ints import symbolic_ints
from polyml.einsum_frontend.syntax import Program
from polyml.einsum_numpy.calls import FORMS, NUMPY_KEYWORDS, form_for, key_of_keywords, refusal_of
from polyml.einsum_numpy.extended import is_extended, program_of, refuse_numpys, request_of
from polyml.einsum_numpy.path import limited
from polyml.einsum_numpy.subscripts import subscripts_of_sublists
from polyml.errors import DeviceUnavailableError, EinsumSyntaxError, PolymlError, SubscriptsSyntaxError
from polyml.options import Options, current, of_blocks
from polyml.runtime.arguments import AnySize
from polyml.runtime.dispatch import COMPILE_LOCK, Dispatcher, wanted_of
from polyml.runtime.foreign.arrays import seen
from polyml.target import Target

if TYPE_CHECKING:
    from polyml.bound_on_device import BoundOnDevice
    from polyml.compiler.driver import Stages
    from polyml.graph.ir import Graph
    from polyml.lowered import Lowered
    from polyml.runtime.compiled import Compiled
    from polyml.runtime.kernel import Kernel
    from polyml.runtime.keys import Key

__all__ = ["Einsum", "einsum", "einsum_path"]


class Einsum(Dispatcher):
    """A program that is compiled on demand: call it with arrays, by place or by name, and with `out=`. `trace`, `lower` and `compile` stop at the stages in between.

    A call compiles for the dtypes, shapes and layouts of its arguments once. `bind` fixes arguments, `explain` says what was chosen, and takes what a call takes, as those three do.

    program: the resolved program. options: how it is compiled: those in force where the program was made, and its own on top.
    """

    def __init__(self, program: Program, options: Mapping[str, object]) -> None:
        self.options = Options.make(**options)
        self.program = program
        asked = self.options.dynamic not in (False, "auto")
        self._lowered: tuple[str, Stages] | None = None
        general = _general(program, self.options)
        wanted, ints = wanted_of(program), symbolic_ints(program)
        short = self.options.dynamic is True and not (self.options.target is not None and self.options.target.is_cuda)
        super().__init__(program.name, wanted, ints, self._compile_key, general, asked=asked, short=short)
        self.__name__ = program.name

    def __reduce__(self) -> tuple[Callable[..., Einsum], tuple[object, ...]]:
        """A copy, in another process too, compiles for itself, or finds kernels on disk."""
        return _again, (self.program, {field.name: getattr(self.options, field.name) for field in fields(Options)})

    def bind(self, /, *unnamed: object, **constants: object) -> Bound | BoundOnDevice:
        """The program with constant arguments, called with the others: what only the constants decide is computed and packed once, and read by every call.

        The arrays are copied: what is written into them later changes nothing. One such program may be called by many threads.

        Raises:
            PolymlError: no such parameter, a constant without a name, another element type or rank; at a call: a constant that the program updates in place.
        """
        refuse_unnamed(self.program, unnamed)
        if self.options.target is not None and self.options.target.is_cuda:
            from polyml.bound_on_device import BoundOnDevice  # the CUDA runtime's part

            return BoundOnDevice(self, constants)
        return Bound(self.program, self.options, constants)

    def trace(self, *args: object, **keywords: object) -> Graph:
        """The graph of tensor equations for these arguments, as the rules have rewritten it; `str` prints it."""
        from polyml.compiler.driver import trace_program

        return trace_program(self.program, self.key_of(*args, **keywords), self.options)[0]

    def lower(self, *args: object, **keywords: object) -> Lowered:
        """The program for these arguments at every stage, down to loops: `show("loops")` prints one, `schedule` is to be transformed by hand. It is kept until another one is, or a call compiles it."""
        from polyml.lowered import Lowered

        key = self.key_of(*args, **keywords)
        stages = self._stages(key)
        self._lowered = _text_of(key), stages
        return Lowered(self.program, stages)

    def compile(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs."""
        return self.kernel_for(*args, **keywords)

    def explain(self, *args: object, **keywords: object) -> str:
        """What was chosen for these arguments, what was refused, and why."""
        return self.lower(*args, **keywords).explain()

    def _stages(self, key: Key) -> Stages:
        """What `lower` has kept, when it is for this key; made again where someone watches the stages."""
        from polyml.compiler.driver import lower_program  # isl, when the kernel is not in the cache

        kept = self._lowered
        if kept is not None and kept[0] == _text_of(key) and not (current("debug") or current("dump")):
            return kept[1]
        return lower_program(self.program, key, self.options)

    def _compile_key(self, key: Key) -> Kernel:
        if self.options.target is not None and self.options.target.is_cuda:
            return self._for_gpu(key)
        from polyml.runtime.cache.kernels import cached_kernel

        def compile() -> Compiled:
            from polyml.compiler.driver import compile_stages

            try:
                stages, self._lowered = self._stages(key), None
                return compile_stages(self.program, stages)
            except PolymlError as fault:
                if isinstance(fault, EinsumSyntaxError | DeviceUnavailableError):
                    raise
                refusal = self._refusal(key, fault)
                if refusal is None:
                    raise
                raise refusal from fault

        return cached_kernel(self.program, key, self.options, compile)

    def _refusal(self, key: Key, fault: PolymlError) -> PolymlError | None:
        """What a program is told that has no kernel for any sizes: what is wrong with it whatever they are, or which must be numbers (each tried alone where that is possible). None for a key without symbolic extents."""
        from polyml.compiler.driver import signature_for
        from polyml.graph.any_size import allows_any_size, fault_at_numbers

        general = self._general
        if general is None or not any(isinstance(layout, AnySize) for layout in key):
            return None
        signature = signature_for(self.program, key)
        with COMPILE_LOCK:
            at_numbers = fault_at_numbers(self.program, signature)
            if at_numbers is not None:
                return at_numbers
            alone = tuple(name for name in general.names if not allows_any_size(self.program, signature, name))
        return PolymlError(
            f"{self.program.name} cannot be compiled for any {', '.join(alone or general.names)}: {fault.message}",
            span=fault.span,
            hint="leave these sizes out: dynamic=(..), with the names of those that may be anything",
        )

    def _dispatch(self, *args: object, **keywords: object) -> object:
        if self.options.target is not None and self.options.target.is_cuda:
            from polyml.runtime.foreign.device_arrays import call_on_device

            given = call_on_device(self, args, keywords)
            if given is not NotImplemented:
                return given
        return super()._dispatch(*args, **keywords)

    def _for_gpu(self, key: Key) -> Kernel:
        from polyml.runtime.cuda.cached import CompiledCuda, cached_cuda_kernel
        from polyml.runtime.cuda.pycuda_device import the_device

        def compile() -> CompiledCuda:
            from polyml.compiler.gpu import compiled_cuda

            stages, self._lowered = self._stages(key), None
            return compiled_cuda(self.program, stages)

        device = the_device()  # before anything is compiled
        return cached_cuda_kernel(self.program, key, self.options, device, compile)

    def __repr__(self) -> str:
        return f"<polyml.einsum program {self.program.name}>"

    def __str__(self) -> str:
        return format_program(self.program)

    def _repr_html_(self) -> str:
        """The program with names told apart and sums written out, for a notebook."""
        from polyml.shown import preformatted  # what only a notebook needs

        return preformatted(str(self))


def _again(program: Program, options: Mapping[str, object]) -> Einsum:
    return Einsum(program, options)


def _decorated(function: Callable[..., object], options: Mapping[str, object]) -> Einsum:
    """The program of a function, which documentation tools find where the function stood."""
    made = Einsum(program_from_function(function), options)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__  # type: ignore[attr-defined]  # of this one
    made.__wrapped__ = function  # type: ignore[attr-defined]  # where doctest and inspect.getsource look for the text
    if function.__doc__ is not None:
        made.__doc__ = function.__doc__
    return made


def _text_of(key: Key) -> str:
    """With the shapes and ints of the call that it was made for, which equal keys may differ in."""
    return repr(key)


def _general(program: Program, options: Options) -> AnyShapes | None:
    """The shapes of a kernel for any sizes, where one may be made."""
    if options.dynamic != "auto":
        return any_shapes(program, options.dynamic)
    try:
        return any_shapes(program, True)
    except PolymlError:  # every call's shape is told what is wrong
        return None


@overload
def einsum(program: Callable[..., object], /, **options: object) -> Einsum: ...
@overload
def einsum(program: str, /, *operands: object, **options: object) -> Any: ...
@overload
def einsum(program: object, /, *operands: object, **options: object) -> Any: ...
@overload
def einsum(*, target: object = ..., **options: object) -> Callable[[Callable[..., object]], Einsum]: ...
def einsum(*arguments: object, **options: object) -> Any:
    """Einstein notation, three ways.

    `@einsum` (or `@einsum(target=..., precise=..., ...)`) over a function in the language of docs/language.md; `einsum(text)` with the same as
    text; `einsum("ik,kj->ij", a, b)`, numpy.einsum's form (docs/einsum.md), called at once, or without operands a callable.

    Args:
        arguments: a function, its text, or subscripts and operands (also operands with sublists): arrays of any strides, lists, numbers.
        options: fields of polyml.Options; in numpy's form also its keywords `out`, `dtype`, `order`, `casting`, `optimize`, and `memory_limit` (elements of
            one intermediate), `semiring`, `where`.

    Returns:
        An `Einsum`, which compiles at its first call; in numpy's form what numpy.einsum returns, with its shape, dtype, memory order and views.

    Raises:
        PolymlError: what is wrong with the program or its arguments, with its place and a remedy. In numpy's form: the class that numpy.einsum raises.
    """
    first = arguments[0] if arguments else None
    if type(first) is str:
        form = None if options or of_blocks() else FORMS.get(first)
        if form is not None and len(arguments) > 1:
            return form.call(*arguments[1:])
        if not _PROGRAM.search(first):
            return _subscripts(first, arguments[1:], options)
        if len(arguments) > 1:
            raise PolymlError("a program text takes no operands here", hint="call the result")
        frame = sys._getframe(1)
        return Einsum(program_from_text(first, {**frame.f_globals, **frame.f_locals}), options)
    if callable(first) and not hasattr(first, "__array__"):
        if len(arguments) > 1:
            raise PolymlError("a decorated function takes no operands here", hint="call the result")
        return _decorated(first, options)
    if not arguments and NUMPY_KEYWORDS.isdisjoint(options):
        return lambda function: _decorated(function, options)
    return _sublists(arguments, options)


def einsum_path(*operands: object, optimize: object = "greedy") -> tuple[list[Any], str]:
    """numpy.einsum_path itself: a contraction path, which `einsum(..., optimize=path)` follows, and its description."""
    path: tuple[list[Any], str] = numpy_einsum_path(*operands, optimize=optimize)  # type: ignore[arg-type]  # it checks
    return path


_PROGRAM = re.compile(r"\bdef\s+\w+\s*\(|^\s*class\s+\w+\s*[(:]|\w\[[^\]]*\]\s*[-+*]?=")
"""What a program has, or is meant to have: subscripts in numpy.einsum's form have neither a function nor an assignment."""


_EXTENDED: dict[tuple[object, ...], Einsum] = {}
"""The programs of calls that say more than numpy.einsum, by what decides about them."""


def _affine(subscripts: str, operands: tuple[object, ...], options: dict[str, object]) -> Any:
    """Affine subscripts. What is refused raises the class that NumPy raises for characters that it does not know, in our words."""
    try:
        return _extended(subscripts, operands, dict(options))
    except PolymlError as fault:
        own = {name: value for name, value in options.items() if name in Options.__dataclass_fields__}
        Options.make(**own)  # raises what is wrong with them
        numpys = {name: value for name, value in options.items() if name not in own}
        try:
            return numpy_einsum(subscripts, *operands, **numpys)  # type: ignore[call-overload]  # it takes "- >" at times
        except Exception as verdict:
            if isinstance(fault, type(verdict)):
                raise fault from None
            if type(verdict) is ValueError:
                raise SubscriptsSyntaxError(fault.message, span=fault.span, hint=fault.hint) from None
            raise


def _extended(subscripts: str, operands: tuple[object, ...], options: dict[str, object]) -> Any:
    """Affine subscripts, semirings, masks, and any call for a GPU: a program per element types and ranks, kept."""
    refuse_numpys(options)
    optimize = limited(options.pop("optimize", True), options.pop("memory_limit", None))
    semiring, where = options.pop("semiring", "plus_times"), options.pop("where", None)
    request, arguments = request_of(subscripts, operands, semiring, where, optimize, look=_look(options))
    out = options.pop("out", None)
    key = (request, *key_of_keywords(options))
    found = _EXTENDED.get(key)
    if found is None:
        found = _EXTENDED.setdefault(key, Einsum(program_of(request), options))
    return found(*arguments) if out is None else found(*arguments, out=out)


def _look(options: Mapping[str, object]) -> Callable[[object], np.ndarray[Any, Any]]:
    """How operands are seen as NumPy arrays, of which only type and shape are asked."""
    if not _for_a_gpu(options):
        return seen
    from polyml.runtime.foreign.device_arrays import seen_anywhere

    return seen_anywhere


def _for_a_gpu(options: Mapping[str, object]) -> bool:
    target = options.get("target", current("target"))
    if isinstance(target, str):
        return target.startswith("cuda")
    return isinstance(target, Target) and target.is_cuda


def _subscripts(subscripts: str, operands: tuple[object, ...], options: dict[str, object]) -> Any:
    more = "semiring" in options or "where" in options or _for_a_gpu(options)
    if more or is_extended(subscripts):
        call = _extended if more else _affine
        if not operands:
            return functools.partial(einsum, subscripts, **options)
        return call(subscripts, operands, {**of_blocks(), **options})
    if operands:
        out = options.pop("out", None)
        form = form_for(subscripts, {**of_blocks(), **options})
        return form.call(*operands) if out is None else form.into(*operands, out=out)
    if not subscripts.strip():
        return numpy_einsum(subscripts, **options)  # type: ignore[call-overload]  # raises what NumPy raises
    refusal = refusal_of(subscripts)
    if refusal is not None:
        hint = "subscripts are as in 'ij,jk->ik', and a program is the text of a function, `def f(..):`"
        raise SubscriptsSyntaxError(refusal.message, span=refusal.span, hint=hint)
    return functools.partial(einsum, subscripts, **options)


def _sublists(arguments: tuple[object, ...], options: dict[str, object]) -> Any:
    """The form `einsum(a, [0, 1], b, [1, 2], [0, 2])`; NumPy says what is wrong with a call that is refused."""
    try:
        subscripts, operands = subscripts_of_sublists(arguments)
        if operands and not isinstance(arguments[0], bytes):  # NumPy takes them for subscripts
            return _subscripts(subscripts, operands, dict(options))
    except (TypeError, ValueError):
        pass
    return numpy_einsum(*arguments, **options)  # type: ignore[call-overload]  # it checks

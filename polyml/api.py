"""`polyml.einsum`: the one entry of the library, in its three forms, and the callable that it makes.

The compiler behind it (isl, LLVM) is imported when the first program is compiled, so that `import polyml` stays light.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from polyml.dtypes import from_numpy
from polyml.einsum_frontend.arguments import symbolic_ints
from polyml.einsum_frontend.numpy_form import program_from_subscripts
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.source import program_from_function, program_from_text
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.options import Options
from polyml.runtime.dispatch import Dispatcher, wanted_of

if TYPE_CHECKING:
    from polyml.graph.ir import Graph
    from polyml.lowered import Lowered
    from polyml.runtime.dispatch import Key
    from polyml.runtime.kernel import Kernel

__all__ = ["Einsum", "einsum"]


class Einsum(Dispatcher):
    """A compiled-on-demand program: call it with arrays. `trace`, `lower` and `compile` stop at the stages in between.

    program: the resolved program. options: how it is compiled: those in force where the program was made, and its own on top.
    """

    def __init__(self, program: Program, options: Mapping[str, object]) -> None:
        self.options = Options.make(**options)
        self.program = program
        super().__init__(program.name, wanted_of(program), symbolic_ints(program), self._compile_key)
        self.__name__ = program.name

    def trace(self, *args: object, **keywords: object) -> Graph:
        """The graph for these arguments."""
        from polyml.compiler import signature_for, trace

        return trace(self.program, signature_for(self.program, self.key_of(*args, **keywords)), self.options)

    def lower(self, *args: object, **keywords: object) -> Lowered:
        """The program for these arguments at every stage, down to loops."""
        from polyml.compiler import lower_program
        from polyml.lowered import Lowered

        key = self.key_of(*args, **keywords)
        return Lowered(self.program, key, lower_program(self.program, key, self.options))

    def compile(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs."""
        return self.kernel_for(*args, **keywords)

    def explain(self, *args: object, **keywords: object) -> str:
        """What was chosen for these arguments, what was refused, and why."""
        return self.lower(*args, **keywords).explain()

    def _compile_key(self, key: Key) -> Kernel:
        from polyml.compiler import kernel_of, lower_program

        return kernel_of(self.program, key, lower_program(self.program, key, self.options))

    def __repr__(self) -> str:
        return f"<polyml.einsum program {self.program.name}>"

    def __str__(self) -> str:
        return format_program(self.program)


@overload
def einsum(program: Callable[..., object], /, **options: object) -> Einsum: ...
@overload
def einsum(program: str, /, *operands: object, **options: object) -> Any: ...
@overload
def einsum(*, target: object = ..., **options: object) -> Callable[[Callable[..., object]], Einsum]: ...
def einsum(program: Callable[..., object] | str | None = None, /, *operands: object, **options: object) -> Any:
    """Einstein notation, three ways.

    `@einsum` (or `@einsum(target=..., precise=..., ...)`) over a function in the language of docs/language.md; `einsum(text)` with the
    same as text; `einsum("ik,kj->ij", a, b)`, numpy.einsum's form, called at once, or without operands a callable.

    Args:
        options: fields of polyml.Options; for numpy's form with operands also `out`.

    Raises:
        PolymlError: what is wrong with the program or its arguments, with its place and a remedy.
    """
    if program is None:
        return lambda function: Einsum(program_from_function(function), options)
    if callable(program):
        if operands:
            raise PolymlError("a decorated function takes no operands here", hint="call the result")
        return Einsum(program_from_function(program), options)
    if not isinstance(program, str):
        raise PolymlError(f"polyml.einsum takes a function or a text, not a {type(program).__name__}")
    if "def " in program:
        if operands:
            raise PolymlError("a program text takes no operands here", hint="call the result")
        frame = sys._getframe(1)
        return Einsum(program_from_text(program, {**frame.f_globals, **frame.f_locals}), options)
    return _subscripts(program, operands, options)


def _subscripts(subscripts: str, operands: tuple[object, ...], options: dict[str, object]) -> Any:
    """numpy.einsum's form: one Einsum per operand types, kept."""
    if not operands:
        return lambda *later, **keywords: _subscripts(subscripts, later, {**options, **keywords})
    out = options.pop("out", None)
    arrays = [np.asarray(operand) for operand in operands]
    kinds = tuple((from_numpy(a.dtype), a.ndim) for a in arrays)
    cache_key = (subscripts, kinds, tuple(sorted(options.items())))
    found = _FORMS.get(cache_key)
    if found is None:
        found = _FORMS.setdefault(cache_key, Einsum(program_from_subscripts(subscripts, kinds), options))
    return found(*arrays) if out is None else found(*arrays, out=out)


_FORMS: dict[tuple[object, ...], Einsum] = {}

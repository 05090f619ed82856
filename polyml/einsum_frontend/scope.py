"""What each name means at one point of a program: parameters, sizes, tensors, loop variables, and the enclosing scope."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from polyml.einsum_frontend.names import CONSTANTS, RESERVED, did_you_mean, fresh_name, is_isl_name, looks_like_index
from polyml.einsum_frontend.syntax import Call, Expression, LoopRef, Number, Program, SizeRef, Subscript
from polyml.errors import EinsumSyntaxError
from polyml.records import dataclass
from polyml.shown import counted
from polyml.source import Span

__all__ = ["Scope", "Tensor", "holds_program", "number_at", "wrong_rank"]


@dataclass(slots=True)
class Tensor:
    """A tensor or scalar in scope. `rank` 0: a scalar. `has_value`: filled, a parameter, or assigned before in the text.

    is_scalar_parameter: it cannot be assigned.
    """

    rank: int
    has_value: bool
    is_parameter: bool = False
    is_scalar_parameter: bool = False


@dataclass(slots=True)
class Scope:
    """The names of one program while its statements are resolved in the order of the text.

    program: its name. namespace: the enclosing scope. taken: every word of the program, so that made-up names differ from all. local: the names that it assigns somewhere, which are therefore
    never looked up outside. captured, programs: what was found outside. gone: tensors of loops that ended. assigned_in_loops: per enclosing loop the names that its body assigns.
    """

    program: str
    namespace: Mapping[str, object]
    taken: frozenset[str]
    local: frozenset[str]
    sizes: dict[str, Span] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    gone: dict[str, Tensor] = field(default_factory=dict)
    assigned_in_loops: list[frozenset[str]] = field(default_factory=list)
    captured: dict[str, int | float | bool | complex] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    safe_names: dict[str, str] = field(default_factory=dict)

    def safe(self, name: str) -> str:
        """`name`, or a stand-in when isl could not read it; the same for every use in the program. Callers give parameters their names."""
        tensor = self.tensors.get(name)
        if is_isl_name(name) or (tensor is not None and tensor.is_parameter):
            return name
        if name not in self.safe_names:
            self.safe_names[name] = fresh_name(name, {*self.taken, *self.safe_names.values()})
        return self.safe_names[name]

    def may_be_index(self, name: str) -> bool:
        """Whether `name` in a subscript is an index here: lower-case, no parameter, no loop variable, no 0-d tensor assigned before."""
        tensor = self.tensors.get(name)
        ordinary = name in self.loops or name in self.sizes or (tensor is not None and self._is_scalar_like(tensor))
        return looks_like_index(name) and name not in RESERVED and not ordinary

    @staticmethod
    def _is_scalar_like(tensor: Tensor) -> bool:
        return tensor.rank == 0 or tensor.is_parameter

    @contextmanager
    def loop(self, variable: str, assigned: frozenset[str]) -> Iterator[None]:
        """The body of a `for`: tensors first made in it are gone afterwards."""
        before = set(self.tensors)
        self.loops.append(variable)
        self.assigned_in_loops.append(assigned)
        yield
        self.loops.pop()
        self.assigned_in_loops.pop()
        for name in [name for name in self.tensors if name not in before]:
            self.gone[name] = self.tensors.pop(name)

    def value_of(self, name: str, span: Span, hint: str | None = None, *, subscript: bool = False) -> Expression:
        """What the bare `name`, which is no index, stands for. `hint`: said when it is undefined. `subscript`: it stands in one.

        Raises:
            EinsumSyntaxError: a tensor with dimensions, a program, another object of the enclosing scope, or nothing at all.
        """
        if name in self.loops:
            return LoopRef(self.safe(name), span)
        if name in self.sizes:
            return SizeRef(self.safe(name), span)
        if name in self.tensors:
            return self._bare_tensor(name, span, subscript)
        if name in CONSTANTS:
            return Number(CONSTANTS[name], span)
        if name in RESERVED:
            hint = "call it, or choose another name for what is meant here, an index for instance"
            raise EinsumSyntaxError(f"{name!r} is a function of the language, not a value", span=span, hint=hint)
        if name in self.local:
            raise self.undefined(name, span)
        number = self.outer_number(name, span)
        if number is not None:
            return number_at(number, span)
        raise self.undefined(name, span, hint)

    def has_outer_number(self, name: str) -> bool:
        """Whether the enclosing scope has a number of this name."""
        found = self.namespace.get(name)
        return isinstance(found, (numbers.Number, np.generic)) or (isinstance(found, np.ndarray) and found.ndim == 0)

    def outer_number(self, name: str, span: Span) -> int | float | bool | complex | None:
        """The number that `name` is in the enclosing scope; None when the scope has no such name. It is noted as captured."""
        if name not in self.namespace:
            return None
        found = self.namespace[name]
        if isinstance(found, np.generic) or (isinstance(found, np.ndarray) and found.ndim == 0):
            found = found.item()
        if isinstance(found, (bool, float, complex)):
            value: int | float | bool | complex = found
        elif isinstance(found, numbers.Integral):
            value = int(found)
        elif holds_program(found):
            hint = f"call it in a statement of its own: t = {name}(x)"
            raise EinsumSyntaxError(f"{name!r} is an einsum program, not a value", span=span, hint=hint)
        else:
            what = type(found).__name__
            hint = (
                "pass it as a parameter"
                if hasattr(type(found), "__len__")
                else "only numbers and einsum programs are read"
            )
            message = f"{name!r} is a {what} of the enclosing scope, not a number"
            raise EinsumSyntaxError(message, span=span, hint=hint)
        self.captured[name] = value
        return value

    def tensor(self, name: str, span: Span, *, rank: int | None = None) -> Tensor:
        """The tensor `name`, to be read with `rank` subscripts.

        Raises:
            EinsumSyntaxError: it is none, has another rank, or has no value yet.
        """
        if name not in self.tensors:
            if name in self.loops or name in self.sizes:
                what = "a loop variable" if name in self.loops else "a size"
                raise EinsumSyntaxError(f"{name!r} is {what} and has no subscripts", span=span)
            if name in self.local or name not in self.namespace:
                raise self.undefined(name, span)
            what = type(self.namespace[name]).__name__
            message = f"{name!r} is no tensor of the program, but a {what} of the enclosing scope"
            raise EinsumSyntaxError(message, span=span, hint=f"pass it as a parameter: {name}: f32[...]")
        found = self.tensors[name]
        if rank is not None and rank != found.rank:
            raise wrong_rank(name, found.rank, rank, span)
        if not found.has_value and not self.assigned_somewhere_in_a_loop(name):
            hint = f"assign it first, or fill it where it is declared: {name}: ... = 0"
            raise EinsumSyntaxError(f"{name!r} is read before it has a value", span=span, hint=hint)
        return found

    def undefined(self, name: str, span: Span, hint: str | None = None) -> EinsumSyntaxError:
        """The error for a name that means nothing here."""
        if name in self.gone:
            hint = "declare it before the loop, so that it outlives an iteration"
            return EinsumSyntaxError(f"{name!r} was made inside a `for` and ended with it", span=span, hint=hint)
        if self.assigned_somewhere_in_a_loop(name):
            hint = "declare it before the loop, so that an iteration can read what the one before wrote"
            return EinsumSyntaxError(f"{name!r} is read before this iteration makes it", span=span, hint=hint)
        if name in self.local:
            again = f"declare it, and write a loop: for t in range(1, N): {name}[t] = {name}[t - 1] + ..."
            hint = f"assign it first; where its elements are made of earlier ones of its own, {again}"
            return EinsumSyntaxError(f"{name!r} is read before it is assigned", span=span, hint=hint)
        known = [*self.tensors, *self.sizes, *self.loops, *RESERVED]
        hint = hint or did_you_mean(name, known) or f"what comes from outside is a parameter: {name}: f32, or f32[...]"
        return EinsumSyntaxError(f"undefined name {name!r}", span=span, hint=hint)

    def assigned_somewhere_in_a_loop(self, name: str) -> bool:
        """Whether the body of an enclosing `for` assigns `name`: an earlier iteration may have."""
        return any(name in assigned for assigned in self.assigned_in_loops)

    def _bare_tensor(self, name: str, span: Span, subscript: bool) -> Subscript:
        tensor = self.tensors[name]
        if tensor.rank:
            example = f"{name}[{', '.join('ijklmn'[: tensor.rank])}]"
            message = (
                f"{name!r} has {tensor.rank} dimension{'s' if tensor.rank > 1 else ''} and is used without subscripts"
            )
            hint = f"name an index for each: {example}"
            if subscript:
                hint = f"an index needs a name that nothing else has; an element that subscripts is written {example}"
            raise EinsumSyntaxError(message, span=span, hint=hint)
        self.tensor(name, span)
        return Subscript(self.safe(name), (), span)


def number_at(value: int | float | bool | complex, span: Span) -> Expression:
    """A number of the enclosing scope, where its name stands."""
    if isinstance(value, complex):
        return Call("complex", (Number(value.real, span), Number(value.imag, span)), span)
    return Number(value, span)


def holds_program(value: object) -> bool:
    """Whether an object of the enclosing scope is an einsum program; asked of objects that the program may not mean, so none of their code runs."""
    return isinstance(inspect.getattr_static(value, "program", None), Program)


def wrong_rank(name: str, rank: int, given: int, span: Span) -> EinsumSyntaxError:
    """The error for an access with another number of subscripts than the tensor has dimensions."""
    if rank == 0:
        return EinsumSyntaxError(f"{name!r} is a scalar and has no subscripts", span=span, hint=f"write {name}")
    message = f"{name!r} has {counted(rank, 'dimension')}, but {counted(given, 'subscript')}"
    return EinsumSyntaxError(message, span=span, hint="one subscript for each dimension")

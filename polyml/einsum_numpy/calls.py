"""Calls in numpy.einsum's form: from the subscripts to a kernel's entry point in one look-up, and to NumPy where no kernel is right.

A `Form` serves one subscripts string (with its keywords). Its `call` is a chain of entry points of kernels, each of which checks the arrays itself; behind them
stands `Form.slow`, which looks among all kernels of the form, plans and compiles. Calls with `out=` have a chain of their own, `into`: NumPy lets `out` have a say in the
type of the computation, and a kernel that fills it need not be one that makes results in NumPy's memory order.
"""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy import (
    einsum as numpy_einsum,  # this one, whatever a user puts into its place in numpy: `np.einsum = polyml.einsum`
)
from numpy import einsum_path as numpy_einsum_path

from polyml.einsum_frontend.names import did_you_mean
from polyml.einsum_numpy.compiled import Compiled, Planned, compile_planned, plan_call
from polyml.einsum_numpy.contraction import Contraction
from polyml.einsum_numpy.layout import Array, Settings, decide
from polyml.einsum_numpy.path import Path, find_path, limited, with_limit
from polyml.einsum_numpy.subscripts import labels_of
from polyml.errors import ArgumentError, PolymlError
from polyml.options import Options
from polyml.runtime.dispatch import COMPILE_LOCK
from polyml.runtime.foreign.arrays import through_numpy

__all__ = ["FORMS", "NUMPY_KEYWORDS", "Form", "form_for", "key_of_keywords", "refusal_of"]

NUMPY_KEYWORDS = frozenset({"out", "dtype", "order", "casting", "optimize", "memory_limit"})
"""NumPy's, and opt_einsum's `memory_limit`."""

FRONT, MOST, HITS = 4, 256, 16
"""Kernels in the chain; kernels kept per form; calls through `slow` that bring a kernel to the front of a full chain."""

MANY, AGAIN, SMALL = 16, 8, 2**24
"""A form with so many kernels leaves calls to NumPy until they come again so often, if the sizes of their operands multiply to no more than `SMALL`: a kernel costs
as much time as thousands of such calls."""

FORMS: dict[str, Form] = {}
"""Those without keywords, by subscripts."""

_WITH_KEYWORDS: dict[tuple[object, ...], Form] = {}
_MOST_FORMS = 4096

_ORDINARY = frozenset({np.ndarray, int, float, bool, list, tuple, np.float64, np.float32, np.int64, np.int32, np.bool_})
"""Types of operands that are neither another library's arrays nor dispatched by NumPy."""

_ONLY_ARRAYS = frozenset({np.ndarray})

_ARRAY_OR_NONE = frozenset({np.ndarray, type(None)})

_PLAIN: Callable[..., Any] = getattr(importlib.import_module("numpy._core.multiarray"), "c_einsum", numpy_einsum)
"""What numpy.einsum calls for arrays without `optimize`, after half a microsecond of looking at its arguments; private, so it need not be there."""

_DISPATCH = np.ndarray.__array_function__

Key = tuple[object, ...]


class Form:
    """One subscripts string and its keywords.

    Args:
        keywords: of numpy.einsum, `out` apart. options: of polyml.Options.
    """

    __slots__ = (
        "_calls",
        "_compiled",
        "_front",
        "_hits",
        "_keywords",
        "_numpys",
        "_options",
        "_settings",
        "call",
        "into",
        "subscripts",
    )

    def __init__(self, subscripts: str, keywords: Mapping[str, object], options: Mapping[str, object]) -> None:
        self.subscripts = subscripts
        self._keywords, self._options = dict(keywords), dict(options)
        self._settings = Settings(**{k: v for k, v in keywords.items() if k != "optimize"})
        self._compiled: dict[Key, Compiled | None] = {}
        self._calls: dict[Key, int] = {}
        self._hits: dict[Compiled, int] = {}
        self._front: dict[bool, tuple[Compiled, ...]] = {False: (), True: ()}  # of calls with `out=`: True
        self.call: Callable[..., Any] = self.slow
        self.into: Callable[..., Any] = self.slow
        self._numpys: Callable[..., Any] = numpy_einsum if "optimize" in keywords else _PLAIN
        if _gives_views(subscripts):
            self.call = self.into = self._view

    @property
    def kernels(self) -> tuple[Compiled, ...]:
        """The kernels compiled so far, the oldest first."""
        return tuple(found for found in self._compiled.values() if found is not None)

    def numpy(self, *operands: object, out: object = None) -> Any:
        """What numpy.einsum gives, or raises; for bf16, which it does not compute with, by way of f32."""
        if any(getattr(getattr(operand, "dtype", None), "name", "") == "bfloat16" for operand in operands):
            return self._in_singles(operands, out)
        return numpy_einsum(self.subscripts, *operands, out=out, **self._keywords)  # type: ignore[call-overload]  # it checks

    def _in_singles(self, operands: Sequence[object], out: Any) -> Any:
        try:
            return numpy_einsum(self.subscripts, *operands, out=out, **self._keywords)  # type: ignore[call-overload]
        except TypeError:
            arrays = _arrays(operands)
            labels = labels_of(self.subscripts, [array.ndim for array in arrays])
            dtype = decide(labels, arrays, out, self._settings).dtype
            wide = [a.astype(np.float32) if a.dtype.name == "bfloat16" else a for a in arrays]
            plain = {name: value for name, value in self._keywords.items() if name not in ("dtype", "casting")}
            result = numpy_einsum(self.subscripts, *wide, **plain)  # type: ignore[call-overload]
            if out is None:
                return np.asarray(result).astype(dtype)[()]
            np.copyto(out, result, casting="unsafe")
            return out

    def _view(self, *operands: object, out: object = None) -> Any:
        if out is None and len(operands) == 1 and type(operands[0]) in _ORDINARY:
            return self._numpys(self.subscripts, operands[0], **self._keywords)
        given = through_numpy(self._view, operands, {} if out is None else {"out": out})
        return self.numpy(*operands, out=out) if given is NotImplemented else given

    def slow(self, *operands: object, out: Any = None) -> Any:
        """Any call: looks up, else plans and compiles."""
        if out is None and not _ONLY_ARRAYS.issuperset(kinds := set(map(type, operands))) and kinds <= _ORDINARY:
            # Numbers and lists: as arrays they go through the chain.
            return self.call(*map(_array, operands))
        if not (_ORDINARY.issuperset(map(type, operands)) and type(out) in _ARRAY_OR_NONE):
            call, keywords = (self.call, {}) if out is None else (self.into, {"out": out})
            given = through_numpy(call, operands, keywords)
            if given is not NotImplemented:
                return given
            if any(map(_dispatches, operands)) or _dispatches(out) or not (out is None or isinstance(out, np.ndarray)):
                return self.numpy(*operands, out=out)
        arrays = _arrays(operands)
        key = _key(arrays, out)
        try:
            found = self._compiled[key]
        except KeyError:
            if len(self._compiled) >= MANY and self._rare(key, arrays):
                return self.numpy(*operands, out=out)
            try:
                found = self._make(key, arrays, out)
            except (PolymlError, ValueError, TypeError) as fault:
                result = self._second_opinion(fault, operands, out)
                self._store(key, None)  # NumPy takes it
                return result
        if found is None:
            return self.numpy(*operands, out=out)
        into = out is not None
        if found not in self._front[into] and found.at_once and (found.planned.direct or not into):
            self._count(found, into)
        return found.run(arrays, out)

    def _rare(self, key: Key, arrays: list[Array]) -> bool:
        """Whether a small call without a kernel has not come often yet."""
        if math.prod(array.size for array in arrays) > SMALL:
            return False
        if len(self._calls) > _MOST_FORMS:
            self._calls.clear()
        count = self._calls[key] = self._calls.get(key, 0) + 1
        return count < AGAIN

    def _make(self, key: Key, arrays: list[Array], out: Array | None) -> Compiled | None:
        find = functools.partial(self._path, arrays)
        precise = self._options.get("precise") is True
        planned = plan_call(self.subscripts, arrays, out, self._settings, find, precise=precise)
        with COMPILE_LOCK:
            if key in self._compiled:  # another thread was faster
                return self._compiled[key]
            return self._store(key, None if planned is None else self._compile(planned))

    def _compile(self, planned: Planned) -> Compiled | None:
        """The kernel; None, with a warning, when the compiler refuses what NumPy computes."""
        try:
            return compile_planned(planned, self._options)
        except PolymlError as fault:
            message = f"numpy.einsum computes {self.subscripts!r}, since it cannot be compiled: {fault}"
            warnings.warn(message, RuntimeWarning, stacklevel=6)
            if len(planned.contraction.terms) > 2:
                self._keywords.setdefault("optimize", True)
            return None

    def _store(self, key: Key, found: Compiled | None) -> Compiled | None:
        self._compiled[key] = found
        while len(self._compiled) > MOST:
            self._compiled.pop(next(iter(self._compiled)))
        return found

    def _path(self, arrays: list[Array], given: Contraction) -> Path:
        """The path that `optimize` asks for: found, as written, or as given."""
        optimize = self._keywords.get("optimize", True)
        everything = (tuple(range(len(arrays))),)
        strategy, limit = with_limit(optimize)
        named = isinstance(strategy, bool | str | None)
        if strategy is False or strategy is None or (named and len(arrays) <= 2):
            return everything
        if strategy is True or (isinstance(strategy, str) and strategy in ("greedy", "optimal")):
            return find_path([term.labels for term in given.terms], given.result, given.sizes, limit)
        path, _ = numpy_einsum_path(self.subscripts, *arrays, optimize=optimize)  # type: ignore[arg-type]  # it checks
        return everything if len(arrays) <= 2 else tuple(tuple(step) for step in path[1:])

    def _second_opinion(self, fault: Exception, operands: tuple[object, ...], out: object) -> Any:
        """NumPy's verdict on a call that was refused here: its result, or its class of error, in our words where they are of that class."""
        try:
            return self.numpy(*operands, out=out)
        except Exception as verdict:
            if isinstance(fault, PolymlError) and isinstance(fault, type(verdict)):
                raise fault from None
            raise

    def _count(self, found: Compiled, into: bool) -> None:
        """Puts a kernel in front of the chain while there is room, and later when it is called often."""
        with COMPILE_LOCK:
            front = self._front[into]
            if len(front) >= FRONT:
                hits = self._hits[found] = self._hits.get(found, 0) + 1
                if hits < HITS:
                    return
            self._hits.clear()
            self._front[into] = (found, *(kernel for kernel in front if kernel is not found))[:FRONT]
            call: Callable[..., Any] = self.slow
            for behind in reversed(self._front[into]):
                call = behind.kernel.entry_before(call)
            if into:
                self.into = call
            else:
                self.call = call


def form_for(subscripts: str, options: Mapping[str, object]) -> Form:
    """The form of these subscripts and keywords (of numpy.einsum, `out` apart, and of polyml.Options), made at its first use.

    Raises:
        ArgumentError: an unknown keyword.
    """
    if not options:
        found = FORMS.get(subscripts)
        return found or _keep(FORMS, subscripts, Form(subscripts, {}, {}))
    key = (subscripts, *key_of_keywords(options))
    found = _WITH_KEYWORDS.get(key)
    if found is not None:
        return found
    own = {name: value for name, value in options.items() if name not in NUMPY_KEYWORDS}
    if unknown := [name for name in own if name not in Options.__dataclass_fields__]:
        known = [*sorted(NUMPY_KEYWORDS), "semiring", "where", *Options.__dataclass_fields__]
        hint = did_you_mean(unknown[0], known) or f"keywords: {', '.join(known)}"
        raise ArgumentError(f"polyml.einsum has no keyword {unknown[0]}", hint=hint)
    Options.make(**own)
    numpys = {name: value for name, value in options.items() if name in NUMPY_KEYWORDS}
    if "memory_limit" in numpys:
        numpys["optimize"] = limited(numpys.get("optimize", True), numpys.pop("memory_limit"))
    return _keep(_WITH_KEYWORDS, key, Form(subscripts, numpys, own))


def key_of_keywords(keywords: Mapping[str, object]) -> tuple[object, ...]:
    """What tells keywords of calls apart, hashable: `1` is not `True`, and a list is as good as a tuple."""
    return tuple((name, type(value), _hashable(value)) for name, value in sorted(keywords.items()))


K = TypeVar("K")


def _keep(forms: dict[K, Form], key: K, form: Form) -> Form:
    while len(forms) >= _MOST_FORMS:
        forms.pop(next(iter(forms)), None)
    return forms.setdefault(key, form)


def _hashable(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def refusal_of(text: str) -> PolymlError | None:
    """What keeps a text from being subscripts in numpy.einsum's form, for as many operands as it has commas, and one."""
    left = text.partition("->")[0]
    try:
        labels_of(text, [sum(c.isalpha() for c in piece) for piece in left.split(",")])
    except PolymlError as fault:
        return fault
    return None


_array: Callable[[object], Array] = np.asarray


def _arrays(operands: Sequence[object]) -> list[Array]:
    return [np.asarray(operand) for operand in operands]


def _dispatches(value: object) -> bool:
    """Whether its class takes part in NumPy's dispatch by __array_function__."""
    return getattr(type(value), "__array_function__", _DISPATCH) is not _DISPATCH


def _key(arrays: list[Array], out: Array | None) -> Key:
    layouts: list[object] = [(a.dtype, a.shape, a.strides, a.flags.aligned) for a in arrays]
    if out is not None:
        layouts.append((out.dtype, out.shape, out.strides, out.flags.aligned, out.flags.writeable))
    return (out is None, *layouts)


def _gives_views(subscripts: str) -> bool:
    """Whether numpy.einsum only makes a view, or refuses the call: a single operand, none of whose letters is summed."""
    left, arrow, right = subscripts.partition("->")
    letters, kept = ([c for c in side if c.isalpha()] for side in (left, right))
    if "," in subscripts:
        return False
    return set(letters) == set(kept) if arrow else len(set(letters)) == len(letters)

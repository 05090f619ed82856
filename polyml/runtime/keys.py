"""What a kernel is for, as a key, and the table of a program's kernels by key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from polyml.einsum_frontend.any_size import AnyShapes
from polyml.runtime.arguments import AnyInt, AnySize, Layout
from polyml.runtime.signature import SizeParameter

if TYPE_CHECKING:
    from polyml.runtime.kernel import Kernel

__all__ = [
    "FEW_VALUES",
    "MOST",
    "REGIONS",
    "KernelTable",
    "Key",
    "ints_of",
    "short_sizes",
    "sizes_of",
    "varying",
    "with_numbers",
]

Key = tuple[Layout | AnySize | AnyInt | int | None, ...]
"""Per parameter: a layout, some extents of which may stay symbolic; the value of an int that is specialized, or AnyInt; None for scalars, and for ints that are
symbolic extents too."""

MOST, REGIONS = 256, 4

FEW_VALUES = 3
"""Values of a size up to which each of them is worth a kernel of its own: pixels have one, three or four channels, and heads 64 or 128 numbers. Loops of a known number of iterations are written out, and have no rest."""

SHORT, LEAST_ROWS = 16, 64
"""Elements of a row or a window that are worth a kernel which knows their number, at most, and rows of an array, at least, that say so: fewer are a call of which nothing is known yet."""


def ints_of(names: Sequence[str], key: Key) -> dict[str, int]:
    """The values of the int parameters in the call that a key is made for, by name."""
    found: dict[str, int] = {}
    for name, layout in zip(names, key, strict=True):
        value = layout.example if isinstance(layout, AnyInt) else layout
        if isinstance(value, int):
            found[name] = value
    return found


def with_numbers(key: Key, positions: Collection[int] | None = None) -> Key:
    """The key with the call's numbers in place of symbolic ints: of all, or of those at some positions."""
    return tuple(
        layout.example if isinstance(layout, AnyInt) and (positions is None or position in positions) else layout
        for position, layout in enumerate(key)
    )


def varying(general: AnyShapes, keys: Iterable[Key], key: Key) -> frozenset[str]:
    """The sizes that have more than FEW_VALUES values among the keys and this one, or of which nothing is known; where there are none, those that have most. None of them where the key's shapes do not fit each other."""
    if any(len(values) > 1 for values in _values(general, [key]).values()):
        return frozenset()
    seen = _values(general, [*keys, key])
    most = min(FEW_VALUES + 1, max(map(len, seen.values()), default=0))
    return frozenset(name for name, values in seen.items() if not values or len(values) >= most)


def sizes_of(general: AnyShapes, key: Key) -> dict[str, int]:
    """The numbers of the sizes that are dimensions alone; none of one that has several, or is no dimension."""
    return {name: next(iter(values)) for name, values in _values(general, [key]).items() if len(values) == 1}


def short_sizes(general: AnyShapes, key: Key) -> dict[str, int]:
    """The sizes that loops of few iterations are made of, with their numbers: short windows, of which a program has few kinds, and the lengths of short rows. None where a dimension is empty, which says nothing about others."""
    if any(isinstance(layout, Layout) and 0 in layout.shape for layout in key):
        return {}
    known = sizes_of(general, key)
    rows = _short_rows(general, key)
    return {n: size for n, size in known.items() if n in rows or (n in general.windows and size <= SHORT)}


def _short_rows(general: AnyShapes, key: Key) -> set[str]:
    """The sizes that short rows are made of: the last dimensions of the largest array, where it has many such rows, and of small arrays beside it, as far as it does not have many of them."""
    most = max((prod(layout.shape) for layout in key if isinstance(layout, Layout)), default=0)
    many = False
    last, rows = set[str](), set[str]()
    for layout, shape in zip(key, general.shapes, strict=True):
        if not isinstance(layout, Layout):
            continue
        names = [frozenset[str]() if extent is None else extent.variables() for extent in shape]
        first = _first_of_row(layout.shape)
        last.update(*names[first:])
        if prod(layout.shape[:first]) >= LEAST_ROWS:
            rows.update(*names[:first])
            many |= first < len(shape) and prod(layout.shape) == most
    return last - rows if many else set()


def _first_of_row(shape: Sequence[int]) -> int:
    """The first of the last dimensions that have few elements together."""
    elements, first = 1, len(shape)
    while first and (elements := elements * shape[first - 1]) <= SHORT:
        first -= 1
    return first


def _values(general: AnyShapes, keys: Iterable[Key]) -> dict[str, set[int]]:
    """By size the numbers of the dimensions that it is alone."""
    seen: dict[str, set[int]] = {name: set() for name in general.names}
    for key in keys:
        for layout, shape in zip(key, general.shapes, strict=True):
            if isinstance(layout, Layout | AnySize):
                for extent, symbol in zip(layout.shape, shape, strict=True):
                    if symbol is not None and symbol.name is not None and isinstance(extent, int):
                        seen[symbol.name].add(extent)
    return seen


class KernelTable:
    """The kernels of one program; of `MOST` keys, the oldest are dropped.

    Under one key with symbolic ints there may be several kernels, each for values of its own, which its signature knows: at most `REGIONS`, then values get kernels of their own. So do
    values at which an int must be a number.

    Args:
        names: of the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._kernels: dict[Key, tuple[Kernel, ...]] = {}
        self._fixed: list[frozenset[int]] = []  # positions of symbolic ints that are numbers in some kernel

    def __iter__(self) -> Iterator[Kernel]:
        every = tuple(self._kernels.values())  # another thread may add one meanwhile
        return (kernel for kernels in every for kernel in kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def keys(self) -> tuple[Key, ...]:
        """What there are kernels for, the oldest first."""
        return tuple(self._kernels)

    def find(self, key: Key) -> Kernel | None:
        """The kernel for a key and the values of its ints."""
        for positions in ((), *self._fixed):
            kernels = self._kernels.get(with_numbers(key, positions) if positions else key, ())
            if kernels:
                values = ints_of(self.names, key)
                found = next((kernel for kernel in kernels if kernel.signature.serves(values)), None)
                if found is not None:
                    return found
        return None

    def to_compile(self, key: Key) -> Key:
        """The key to compile for, where there is no kernel yet: without symbolic ints, where there are as many kernels of it as there may be."""
        return with_numbers(key) if len(self._kernels.get(key, ())) >= REGIONS else key

    def keep(self, key: Key, kernel: Kernel) -> None:
        """Adds what was compiled for a key."""
        parameters = kernel.signature.parameters
        free = [position for position, layout in enumerate(key) if isinstance(layout, AnyInt)]
        fixed = frozenset(k for k in free if isinstance(p := parameters[k], SizeParameter) and p.value is not None)
        if fixed and fixed not in self._fixed:
            self._fixed.append(fixed)
        own = with_numbers(key, fixed) if fixed else key
        self._kernels[own] = (*self._kernels.get(own, ()), kernel)
        while len(self._kernels) > MOST:
            self._kernels.pop(next(iter(self._kernels)))

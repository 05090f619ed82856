"""What a Kernel takes and gives, as data: made from a Graph by the driver, read by the entry point, the argument checks and the host function.

The host function of a kernel is `i32 @name(ptr arrays, ptr sizes)`. `arrays` holds the address of the first element of each array and scalar parameter
(int parameters apart) in call order, then of each result; `sizes` the symbolic sizes as i64. It returns OK, NO_MEMORY, or k >= 1 when the k-th check failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyml.dtypes import DType
from polyml.einsum_frontend.symbolic_ints import LARGEST_INT
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.weighed import Weighed

__all__ = [
    "NO_MEMORY",
    "OK",
    "ArrayParameter",
    "KernelSignature",
    "Parameter",
    "Result",
    "ScalarParameter",
    "SizeParameter",
    "SizeSource",
]  # fmt: skip

OK, NO_MEMORY = 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayParameter:
    """`shape` is affine in the signature's sizes. strides: in elements; None: contiguous, row-major. written: updated in place."""

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    strides: tuple[int, ...] | None = None
    written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarParameter:
    """A number that is converted to `dtype` and passed by address."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeParameter:
    """An `int` parameter. value: the only number that the kernel is for; None: the symbolic size of that name."""

    name: str
    value: int | None = None


Parameter = ArrayParameter | ScalarParameter | SizeParameter


@dataclass(frozen=True, slots=True)
class SizeSource:
    """Where a call says a symbolic size: the int parameter at `position` (dimension: None), or an extent there, which is `factor * size + offset`."""

    name: str
    position: int
    dimension: int | None = None
    factor: int = 1
    offset: int = 0

    @property
    def rank(self) -> int:
        """Sources of lower rank come first."""
        return 0 if self.dimension is None else 1 if (self.factor, self.offset) == (1, 0) else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A new array that the kernel fills (the caller gets a NumPy scalar when `shape` is empty).

    strides: in elements, of constant shapes without gaps in some order of dimensions; None: contiguous, row-major. called: its name in the program.
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    strides: tuple[int, ...] | None = None
    called: str = ""

    @property
    def label(self) -> str:
        """What a message calls it."""
        return self.called or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSignature:
    """parameters: in call order. sizes: the symbolic ones, each an int parameter or an entry of a shape. results: the new arrays.
    requires: expressions in the sizes that must be at least 0. suits: what must hold for it to pay; else a call gets a kernel of its own. returned: names of results and of written parameters, as the program returns them. checks: the message of IndexError for status 1, 2, ...
    indices: for each check the parameter whose elements are checked before anything is written, and what they have to be less than; None, or no entry: nobody knows.
    """

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...] = ()
    returned: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    indices: tuple[tuple[str, Affine] | None, ...] = ()
    requires: tuple[Affine, ...] = ()
    suits: tuple[Weighed, ...] = ()

    def serves(self, values: Mapping[str, int]) -> bool:
        """Whether the kernel is for these values of its `int` parameters.

        Args:
            values: of the int parameters; those that are missing, and other sizes, are left to the entry point.
        """
        ints = {p.name: p.value for p in self.parameters if isinstance(p, SizeParameter) and p.name in values}
        if any(value not in (None, values[name]) for name, value in ints.items()):
            return False
        free = {name for name, value in ints.items() if value is None}
        if any(abs(values[name]) > LARGEST_INT for name in free):
            return False
        conditions = [c for c in self.requires if c.variables() & free and c.variables() <= values.keys()]
        return all(condition.evaluate(values) >= 0 for condition in conditions)

    @property
    def buffers(self) -> tuple[ArrayParameter | ScalarParameter, ...]:
        """The parameters that have an address, in the order of the host function's `arrays`."""
        return tuple(p for p in self.parameters if not isinstance(p, SizeParameter))

    def __str__(self) -> str:
        made = {r.name: _text(r.dtype, r.shape) for r in self.results}
        parameters = ", ".join(_parameter_text(p) for p in self.parameters)
        return f"{self.name}({parameters}) -> {', '.join(made.get(name, name) for name in self.returned) or 'None'}"

    def size_sources(self) -> dict[str, SizeSource]:
        """For each symbolic size where a call says it: an int parameter, else the first bare entry, else the first entry of the size alone."""
        found: dict[str, SizeSource] = {}
        for source in sorted(self._occurrences(), key=lambda source: source.rank):
            if source.name in self.sizes:
                found.setdefault(source.name, source)
        assert set(found) == set(self.sizes), "internal: a symbolic size that no argument binds"
        return found

    def _occurrences(self) -> Iterator[SizeSource]:
        for position, parameter in enumerate(self.parameters):
            match parameter:
                case SizeParameter(name=name, value=None):
                    yield SizeSource(name, position)
                case ArrayParameter(shape=shape):
                    for dimension, extent in enumerate(shape):
                        if extent.of_one is not None:
                            name, factor, offset = extent.of_one
                            yield SizeSource(name, position, dimension, factor, offset)
                case _:
                    pass


def _parameter_text(parameter: Parameter) -> str:
    match parameter:
        case ArrayParameter(name=name, dtype=dtype, shape=shape, strides=strides):
            layout = "" if strides is None else f" strides {strides}"
            return f"{name}: {_text(dtype, shape)}{layout}{' in place' if parameter.written else ''}"
        case ScalarParameter(name=name, dtype=dtype):
            return f"{name}: {dtype}"
        case SizeParameter(name=name, value=value):
            return f"{name}: int" if value is None else f"{name} = {value}"


def _text(dtype: DType, shape: tuple[Affine, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"

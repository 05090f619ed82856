"""Scalar expressions over tensor elements: one family from the graph down to the loops.

In a Graph a `Read` names a tensor and its subscripts are quasi-affine in the equation's indices; in a Scop it names an array and they are over the statement's
indices; in Loops they are over loop variables. So a stage lowers a body by substitution and nothing else. Every node carries its dtype, and
arguments of an op already have the common dtype that the op computes in (casts are explicit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from polyml.dtypes import DType
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = [
    "Apply",
    "Const",
    "Expr",
    "IndexValue",
    "Numbered",
    "Read",
    "Subscript",
    "apart",
    "factors_of",
    "has_index_values",
    "is_number",
    "map_reads",
    "neighbours",
    "ops_in",
    "plain_index",
    "plain_indices",
    "product_of",
    "reads_of",
    "spelling",
    "substitute",
    "variables_in",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Const:
    """A number of the given dtype."""

    value: int | float | bool
    dtype: DType

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The value of a quasi-affine expression as a number (dtype i64; a cast converts it)."""

    affine: Affine
    dtype: DType

    def __str__(self) -> str:
        return str(self.affine)


class _Hashed:
    """A place for a hash, which no copy and no pickle takes along (those of strings are a process's own)."""

    __slots__ = ("_hash",)
    _hash: int


class _Kept(_Hashed):
    """And others for the reads and ops below, which pass after pass asks for."""

    __slots__ = ("_ops", "_reads")
    _ops: frozenset[str]
    _reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Read(_Hashed):
    """The element of `tensor` at `subscripts`; a subscript that is an expression is a gather (its dtype is an integer's)."""

    tensor: str
    subscripts: tuple[Subscript, ...]
    dtype: DType

    def __hash__(self) -> int:
        """Kept: passes look up one read in table after table."""
        try:
            return self._hash
        except AttributeError:
            found = hash((self.tensor, self.subscripts))
            _set_hash(self, found)
            return found

    def at(self, subscripts: Iterable[Subscript]) -> Read:
        """The tensor's element at others; itself where they are the same objects."""
        made = renewed(self.subscripts, subscripts)
        return self if made is self.subscripts else Read(self.tensor, made, self.dtype)

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.subscripts))}]" if self.subscripts else self.tensor


@dataclass(frozen=True, slots=True)
class Apply(_Kept):
    """`op` (a row of polyml.ops.OPS) applied to `args`. For `select` only the chosen value's reads happen."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType

    def __hash__(self) -> int:
        """Kept: the sums of a long chain each contain the one before, and all of them are looked up in sets."""
        try:
            return self._hash
        except AttributeError:
            found = hash((self.op, self.args, self.dtype))
            _set_hash(self, found)
            return found

    def with_args(self, args: Iterable[Expr]) -> Apply:
        """The op applied to others; itself where they are the same objects."""
        made = renewed(self.args, args)
        return self if made is self.args else Apply(self.op, made, self.dtype)

    def __str__(self) -> str:
        if self.op == "cast":
            return f"{self.dtype}({self.args[0]})"
        symbol = _SYMBOLS.get(self.op)
        if symbol is not None:
            return f"({self.args[0]} {symbol} {self.args[1]})"
        return f"{self.op}({', '.join(map(str, self.args))})"


_set_hash = vars(_Hashed)["_hash"].__set__  # the classes are frozen
_set_ops = vars(_Kept)["_ops"].__set__
_set_reads = vars(_Kept)["_reads"].__set__


def spelling(op: str) -> str:
    """An op as programs write it."""
    return f"`{_SYMBOLS[op]}`" if op in _SYMBOLS else op


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
}  # fmt: skip

Expr = Const | IndexValue | Read | Apply
Subscript = Affine | Const | IndexValue | Read | Apply


def plain_index(subscript: Subscript) -> str | None:
    """The index that the subscript is; None where it is anything else."""
    return subscript.name if isinstance(subscript, Affine) else None


def plain_indices(subscripts: Iterable[Subscript]) -> list[str | None]:
    """`plain_index` each."""
    return [s.name if isinstance(s, Affine) else None for s in subscripts]


def apart(subscript: Expr) -> tuple[Affine, Expr | None]:
    """An index of 64 bits as what indices say of it, which is affine, and the sum of its other terms (None: there are none): `t + d[c]` is t and d[c]. Sums wrap, and so does the sum of both."""
    match subscript:
        case IndexValue():
            return subscript.affine, None
        case Const() if subscript.dtype.is_integer:
            return Affine((), int(subscript.value)), None
        case Apply(op="add" | "sub" as op, args=(first, second), dtype=dtype) if dtype.is_integer and dtype.bits == 64:
            (known, rest), (more, other) = apart(first), apart(second)
            if other is None:
                return known + more if op == "add" else known - more, rest
            if rest is None and op == "add":
                return known + more, other
            if rest is None:
                rest = Const(0, dtype)
            return known + more if op == "add" else known - more, Apply(op, (rest, other), dtype)
        case _:
            return Affine(), subscript


def variables_in(subscripts: Iterable[Subscript]) -> set[str]:
    """The indices and sizes that those of the subscripts which are affine depend on."""
    return {name for subscript in subscripts if isinstance(subscript, Affine) for name in subscript.variables()}


def is_number(subscript: Subscript) -> bool:
    """Whether it is the same for all instances."""
    return isinstance(subscript, Affine) and subscript.is_constant


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all below it, gathered subscripts included, parents first."""
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        yield node
        match node:
            case Const() | IndexValue():
                pass
            case Read():
                stack.extend(s for s in reversed(node.subscripts) if not isinstance(s, Affine))
            case Apply():
                stack.extend(reversed(node.args))
            case _:
                assert_never(node)


def reads_of(expr: Expr) -> list[Read]:
    """All reads, those inside gathered subscripts included, in the order of the text."""
    if not isinstance(expr, Apply):
        return _reads_of(expr)
    try:
        return list(expr._reads)
    except AttributeError:
        found = _reads_of(expr)
        _set_reads(expr, tuple(found))
        return found


def _reads_of(expr: Expr) -> list[Read]:
    found: list[Read] = []
    stack: list[Expr] = [expr]
    while stack:  # walk(), without what is not asked for
        node = stack.pop()
        if isinstance(node, Apply):
            stack.extend(reversed(node.args))
        elif isinstance(node, Read):
            found.append(node)
            for s in reversed(node.subscripts):
                if not isinstance(s, Affine):
                    stack.append(s)
    return found


_INDEX_VALUES = frozenset({"index value"})
"""Stands among the ops of an expression for the values of indices in it."""


def ops_in(expr: Expr) -> frozenset[str]:
    """The ops of the expression, those inside gathered subscripts included. Found once for each part, so that all parts of an expression may be asked."""
    return _kinds_in(expr) - _INDEX_VALUES


def has_index_values(expr: Expr) -> bool:
    """Whether the value of an index is a part of it, those inside gathered subscripts included."""
    return not _INDEX_VALUES.isdisjoint(_kinds_in(expr))


def _kinds_in(expr: Expr) -> frozenset[str]:
    match expr:
        case Const():
            return frozenset()
        case IndexValue():
            return _INDEX_VALUES
        case Read():
            return frozenset().union(*(_kinds_in(s) for s in expr.subscripts if not isinstance(s, Affine)))
        case Apply():
            try:
                return expr._ops
            except AttributeError:
                found = {expr.op}
                for arg in expr.args:
                    found |= _kinds_in(arg)
                _set_ops(expr, kinds := frozenset(found))
                return kinds
        case _:
            assert_never(expr)


def factors_of(expr: Expr) -> list[Expr]:
    """What is multiplied in a product of products, in the order of the text; any other expression by itself."""
    match expr:
        case Apply(op="mul", args=(x, y)):
            return [*factors_of(x), *factors_of(y)]
        case _:
            return [expr]


def product_of(factors: Sequence[Expr]) -> Expr:
    """The factors multiplied from the left, in their type."""
    product = factors[0]
    for factor in factors[1:]:
        product = Apply("mul", (product, factor), product.dtype)
    return product


def neighbours(expr: Apply) -> Read | None:
    """The first of the elements that the op makes one number of, as long as all of them, where they lie one behind the other along the last dimension, and the same arithmetic is done to each; else None."""
    found = [list(reads_of(arg)) for arg in expr.args]
    if any(len(reads) != 1 for reads in found):
        return None
    first = found[0][0]
    if first.dtype.bits * len(found) != expr.dtype.bits:
        return None
    *outer, one = first.subscripts or (None,)
    for k, (arg, (read,)) in enumerate(zip(expr.args, found, strict=True)):
        *same, other = read.subscripts or (None,)
        if not isinstance(one, Affine) or not isinstance(other, Affine) or other - one != Affine(constant=k):
            return None
        if first.tensor != read.tensor or outer != same or map_reads(arg, lambda _: first) != expr.args[0]:
            return None
    return first


class Numbered:
    """Numbers for expressions, one for all that are equal: each node is looked at once, however often it is asked for, where the hash of an expression is that of all below it.

    exactly: 0.0 is not -0.0, nor 1 True.
    """

    def __init__(self, *, exactly: bool = False) -> None:
        self._exactly = exactly
        self._numbers: dict[object, int] = {}
        self._known: dict[int, tuple[Expr, int]] = {}

    def __call__(self, expr: Expr) -> int:
        known = self._known.get(id(expr))
        if known is not None:
            return known[1]
        for node in reversed(list(walk(expr))):  # children first
            if id(node) not in self._known:
                # With the node, whose id nothing else has while it is kept.
                self._known[id(node)] = node, self._numbers.setdefault(self._key(node), len(self._numbers))
        return self._known[id(expr)][1]

    def _key(self, node: Expr) -> object:
        match node:
            case Apply():
                return Apply, node.op, node.dtype, *(self._known[id(arg)][1] for arg in node.args)
            case Read():
                places = (s if isinstance(s, Affine) else self._known[id(s)][1] for s in node.subscripts)
                return Read, node.tensor, node.dtype, *places
            case Const() if self._exactly:
                return Const, node.dtype, repr(node.value)
            case _:
                return node


def substitute(expr: Expr, values: Mapping[str, Affine | int]) -> Expr:
    """The expression with index variables replaced, all at once; the same object when nothing changed."""
    match expr:
        case Const():
            return expr
        case IndexValue():
            replaced = expr.affine.substitute(values)
            return expr if replaced == expr.affine else IndexValue(replaced, expr.dtype)
        case Read():
            subscripts = tuple(
                s.substitute(values) if isinstance(s, Affine) else substitute(s, values) for s in expr.subscripts
            )
            return expr if subscripts == expr.subscripts else Read(expr.tensor, subscripts, expr.dtype)
        case Apply():
            return expr.with_args(substitute(arg, values) for arg in expr.args)
        case _:
            assert_never(expr)


def map_reads(expr: Expr, change: Callable[[Read], Expr]) -> Expr:
    """The expression with every read replaced by `change(read)`, innermost first; the same object when nothing changed."""
    match expr:
        case Const() | IndexValue():
            return expr
        case Read():
            subscripts = tuple(s if isinstance(s, Affine) else map_reads(s, change) for s in expr.subscripts)
            return change(expr if subscripts == expr.subscripts else Read(expr.tensor, subscripts, expr.dtype))
        case Apply():
            return expr.with_args(map_reads(arg, change) for arg in expr.args)
        case _:
            assert_never(expr)

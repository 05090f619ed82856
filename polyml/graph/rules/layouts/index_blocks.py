"""An index that moves an operand by its quotient is two indices, which block and where in it, and so is one that steps through blocks of a dimension: `y[k, p] = sum[c](x[4*(k // 8) + c, p] * w[k, c])` becomes

    t[g, e, p] = sum[c](x[4*g + c, p] * w[8*g + e, c])
    y[k, p] = t[k // 8, k % 8, p]

since x is the same for all e of a block, which no schedule of one loop over k knows: grouped convolutions, heads that share keys. The other rules see an equation whose result has plain indices; the last line is
undone behind them (layouts/merged_dimensions.py). What is computed element by element from such a result (a bias, an activation) goes along with it.

What goes to quotients and remainders, `y[i % 4, i // 4] = x[i]`, is one equation over the places it goes to, `y[r, q] = x[4*q + r]`, so that lanes run along the result's rows.

Source: strip-mining of Allen and Kennedy, "Optimizing Compilers for Modern Architectures" (2002), section 9.3, for indices of equations instead of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import assert_never

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, map_reads, reads_of, substitute, walk
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_expressions, replace_equations, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import hull
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh, fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, FloorDiv, affine
from polyml.sets.digits import digits, indices_of_digits
from polyml.sets.independence import is_independent
from polyml.sets.spaces import parameters_of

__all__ = ["has_whole_blocks", "in_blocks", "part_indices", "quotients_of", "with_quotient"]


@dataclass(frozen=True, slots=True)
class _Parted:
    """A result whose dimensions are apart. radices: per dimension of the whole one, the extents of its parts from the outermost on."""

    tensor: Tensor
    radices: tuple[tuple[int, ...], ...]


def part_indices(graph: Graph, *, vector_bytes: int) -> Graph:
    """The graph whose sums have such indices apart. vector_bytes: of blocks along rows of memory, which are no shorter than a vector."""
    rule = _Rule(tensors_of(graph), vector_bytes)
    ops = replace_equations(graph.ops, rule.apart)
    changed = with_ops(graph, ops)
    return graph if changed is graph else remove_dead(changed)


class _Rule:
    """The rule at work: which results are apart already."""

    def __init__(self, tensors: dict[str, Tensor], vector_bytes: int) -> None:
        self._tensors = tensors
        self._vector_bytes = vector_bytes
        self._parted: dict[str, _Parted] = {}

    def apart(self, equation: Equation) -> Sequence[Op]:
        """The equation, or what it becomes."""
        if equation.only_if is not None:
            return [equation]
        equation = _at_own_places(equation)
        if not (equation.reduce is not None or is_elementwise(equation)):
            return [equation]
        divided = {name for place in _places(equation) for name in _divided(place)}
        quotients = quotients_of(equation) if divided else {}
        for index in [index for index, size in quotients.items() if _is_one_block(equation, index, size)]:
            equation = with_quotient(equation, index, quotients[index], affine(0))
            del quotients[index]
            divided.discard(index)
        blocks = {} if equation.reduce is None else dict(quotients)
        for index, size in self._followed(equation).items():
            if index not in divided or quotients.get(index) == size:
                blocks.setdefault(index, size)
        blocks = {k: size for k, size in blocks.items() if self._suits(equation, k, size)}
        if any(index in divided and index not in blocks for index in equation.left):
            blocks = {}  # rules and lanes would meet quotients all the same
        if not blocks and equation.is_plain:
            return [equation]
        made = equation
        for index, size in blocks.items():
            made = in_blocks(made, index, size)
        extents = hull(made)
        if extents is None:
            return [made]
        made = map_expressions(made, lambda body: map_reads(body, lambda read: self._read_apart(read, extents)))
        whole = _radices(made, extents)
        if whole is None:
            return [made]
        return self._with_parts(made, whole, extents)

    def _followed(self, equation: Equation) -> dict[str, int]:
        """Indices that go through dimensions which are apart, and how long their blocks are."""
        found: dict[str, int] = {}
        for read in reads_of(equation.body):
            parted = self._parted.get(read.tensor)
            for place, radices in zip(read.subscripts, parted.radices if parted else (), strict=False):
                if isinstance(place, Affine) and place.name in equation.indices and len(radices) == 2:
                    found.setdefault(place.name, radices[1])
        return found

    def _suits(self, equation: Equation, index: str, size: int) -> bool:
        """Whether the index has some blocks, all of them whole, and lanes along it are no fewer by that."""
        if index in equation.reduced or equation.base is not None or equation.instances is not None:
            return False
        if not has_whole_blocks(equation, index, size):
            return False
        last = equation.target[-1]
        along = isinstance(last, Affine) and index in last.variables()
        return not along or size * equation.result.dtype.itemsize % max(self._vector_bytes, 1) == 0

    def _read_apart(self, read: Read, extents: Mapping[str, int]) -> Read:
        """The same element of the result that is apart, where the read has the digits of its place."""
        parted = self._parted.get(read.tensor)
        if parted is None:
            return read
        places: list[Subscript] = []
        for place, radices in zip(read.subscripts, parted.radices, strict=True):
            if len(radices) == 1:
                places.append(place)
                continue
            parts = indices_of_digits(place, extents) if isinstance(place, Affine) else None
            if parts is None or tuple(extents[index] for index in parts) != radices:
                return read
            places += map(affine, parts)
        return Read(parted.tensor.name, tuple(places), read.dtype)

    def _with_parts(
        self, equation: Equation, whole: Sequence[tuple[str, ...]], extents: Mapping[str, int]
    ) -> list[Equation]:
        """The equation whose result has a dimension for each index, and what the result was made of that."""
        result = equation.result
        radices = tuple(tuple(extents[index] for index in parts) for parts in whole)
        left = tuple(index for parts in whole for index in parts)
        name = fresh_name(f"{result.name}_blocks", self._tensors)
        shape = tuple(affine(extents[index]) for index in left)
        tensor = self._tensors[name] = Tensor(name, result.dtype, shape, result.label)
        indices = (*left, *equation.reduced)
        order = isl.Map(f"{{ {result.name}[{', '.join(equation.indices)}] -> {name}[{', '.join(indices)}] }}")
        made = replace(
            equation,
            result=tensor,
            indices=indices,
            domain=equation.domain.apply(order),
            target=tuple(map(affine, left)),
        )
        self._parted[result.name] = _Parted(tensor, radices)
        places: list[Affine] = []
        for dimension, parts in enumerate(radices):
            places += digits(affine(f"i{dimension}"), parts)
        return [made, fill(result, Read(name, tuple(places), result.dtype), equation.span)]


def quotients_of(equation: Equation) -> dict[str, int]:
    """The indices that are divided by one number, wherever they are divided, and by themselves."""
    found: dict[str, int] = {}
    never: set[str] = set()
    for place in _places(equation):
        for atom, _ in place.terms:
            if isinstance(atom, str):
                continue
            index = atom.numerator.name if isinstance(atom, FloorDiv) else None
            if (
                index is None
                or not isinstance(atom, FloorDiv)
                or found.get(index, atom.denominator) != atom.denominator
            ):
                never |= atom.variables()
            else:
                found[index] = atom.denominator
    return {index: size for index, size in found.items() if index in equation.indices and index not in never}


def _divided(place: Affine) -> frozenset[str]:
    """The variables that move the place in another way than by steps of one length."""
    atoms = (atom for atom, _ in place.terms if not isinstance(atom, str))
    return frozenset[str]().union(*(atom.variables() for atom in atoms))


def _places(equation: Equation) -> Iterable[Affine]:
    """All index arithmetic of the equation."""
    for place in equation.target:
        if isinstance(place, Affine):
            yield place
    for expr in (equation.body, *(s for s in equation.target if not isinstance(s, Affine))):
        for node in walk(expr):
            if isinstance(node, IndexValue):
                yield node.affine
            elif isinstance(node, Read):
                yield from (s for s in node.subscripts if isinstance(s, Affine))


def in_blocks(equation: Equation, index: str, size: int) -> Equation:
    """The equation with two indices in the place of one."""
    taken = {*equation.indices, *parameters_of(equation.domain)}
    outer, inner = fresh(f"{index}_outer", taken), fresh(f"{index}_inner", taken)
    whole = size * affine(outer) + affine(inner)
    at = equation.indices.index(index)
    indices = (*equation.indices[:at], outer, inner, *equation.indices[at + 1 :])
    name, before = equation.result.name, ", ".join(equation.indices)
    limits = f"{index} = {whole.isl_text()} and 0 <= {inner} < {size}"
    parts = isl.Map(f"{{ {name}[{before}] -> {name}[{', '.join(indices)}] : {limits} }}")
    made = with_quotient(equation, index, size, affine(outer))
    values = {index: whole}
    target = tuple(s.substitute(values) if isinstance(s, Affine) else substitute(s, values) for s in made.target)
    body = substitute(made.body, values)
    return replace(made, indices=indices, domain=equation.domain.apply(parts), target=target, body=body)


def _at_own_places(equation: Equation) -> Equation:
    """An equation that goes to the quotients and remainders of its indices, each place at most once, as one over the places.

    Rewrite:
        y[i % 4, i // 4] = x[i]
        -> y[r, q] = x[4*q + r]
    """
    if equation.reduce is not None or equation.base is not None or equation.instances is not None:
        return equation
    if not all(isinstance(place, Affine) for place in equation.target):
        return equation
    divided = {name for place in equation.target if isinstance(place, Affine) for name in _divided(place)}
    last = equation.target[-1] if divided else None
    if not isinstance(last, Affine) or not last.terms or any(isinstance(atom, str) for atom, _ in last.terms):
        return equation  # remainders or plain indices at the end: neighbours go to neighbours as it is
    made, quotients = equation, quotients_of(equation)
    for index in equation.indices:
        if index not in divided:
            continue
        if index not in quotients or not has_whole_blocks(equation, index, quotients[index]):
            return equation
        made = in_blocks(made, index, quotients[index])
    if not is_elementwise(made):
        return equation
    left = [place.name for place in made.target if isinstance(place, Affine) and place.name is not None]
    name = made.result.name
    order = isl.Map(f"{{ {name}[{', '.join(made.indices)}] -> {name}[{', '.join(left)}] }}")
    return replace(made, indices=tuple(left), domain=made.domain.apply(order))


def has_whole_blocks(equation: Equation, index: str, size: int) -> bool:
    """Whether the index, whatever the others are, goes through more than one block of this size, from the start of the first to the end of the last."""
    position = equation.indices.index(index)
    low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
    if not low.is_zero() or not high.is_int():
        return False
    extent = high.to_python() + 1
    return extent % size == 0 and extent != size and is_independent(equation.domain, position)


def _is_one_block(equation: Equation, index: str, size: int) -> bool:
    """Whether the index divided by the size is 0."""
    position = equation.indices.index(index)
    low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
    return low.is_int() and high.is_int() and low.to_python() >= 0 and high.to_python() < size


def with_quotient(equation: Equation, index: str, size: int, quotient: Affine) -> Equation:
    """The equation with what is known of the index divided by the size, wherever that stands."""

    def known(place: Affine) -> Affine:
        total = affine(place.constant)
        for atom, coefficient in place.terms:
            divided = isinstance(atom, FloorDiv) and atom.numerator.name == index and atom.denominator == size
            total += coefficient * (quotient if divided else Affine(((atom, 1),)))
        return total

    target = tuple(known(s) if isinstance(s, Affine) else _moved(s, known) for s in equation.target)
    return replace(equation, target=target, body=_moved(equation.body, known))


def _moved(expr: Expr, move: Callable[[Affine], Affine]) -> Expr:
    """The expression with its index arithmetic moved."""
    match expr:
        case Const():
            return expr
        case IndexValue():
            return IndexValue(move(expr.affine), expr.dtype)
        case Read():
            return expr.at(move(s) if isinstance(s, Affine) else _moved(s, move) for s in expr.subscripts)
        case Apply():
            return expr.with_args(_moved(arg, move) for arg in expr.args)
        case _:
            assert_never(expr)


def _radices(equation: Equation, extents: Mapping[str, int]) -> list[tuple[str, ...]] | None:
    """Per dimension of the result, the indices whose values are the digits of its places; None where these are something else, or one index each."""
    if equation.base is not None or equation.instances is not None:
        return None
    found = [indices_of_digits(place, extents) if isinstance(place, Affine) else None for place in equation.target]
    whole = [parts for parts in found if parts is not None]
    if len(whole) < len(found) or all(len(parts) == 1 for parts in whole):
        return None
    if sorted(index for parts in whole for index in parts) != sorted(equation.left):
        return None
    shape = tuple(affine(prod(extents[index] for index in parts)) for parts in whole)
    return whole if shape == equation.result.shape else None

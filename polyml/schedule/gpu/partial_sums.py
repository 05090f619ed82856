"""Reductions over several blocks of a GPU: where a region has fewer results than the device has cores, parts of the reduction get results of their own, and a
second kernel combines these. The order of a sum depends on sizes only, so that results are the same each time. Sizes may be symbolic (gpu/any_parts.py).

Rewrite: S: s += x[i] -> S[b, r]: p[b] += x[size * b + r]; S_combine[b]: s += p[b].
argmax and argmin: S: (s, a) max= (x[i], i) -> (p[b], q[b]) max= (x[size * b + r], size * b + r); (s, w) max= (p[b], b); a = q[w]. Parts are in order, so that the first of
equals stays the winner.

Source: rfactor, Suriana, Adams and Kamil, "Parallel associative reductions in Halide" (CGO 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import ceil, prod

import islpy as isl

from polyml.expressions import Const, Read, substitute
from polyml.new_names import underscored
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.gpu.any_parts import LEAST_PARTS, LEAST_WORK, LINE, any_parts, in_columns
from polyml.schedule.schedule import Note, Product
from polyml.schedule.written import in_order, with_statements
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text
from polyml.target import Target

__all__ = ["SplitScop", "cut_of", "parts_of_sum", "split_reductions"]

BLOCKS_PER_CORE = 4
"""As many blocks as hide each other's waiting."""


@dataclass(frozen=True, slots=True)
class SplitScop:
    """A scop with partial results; notes: which; worth: what must hold for them to pay, where that depends on sizes."""

    scop: Scop
    notes: tuple[Note, ...] = ()
    worth: tuple[Product, ...] = ()


def split_reductions(
    scop: Scop, models: Mapping[str, StatementModel], target: Target, *, but: Set[str] = frozenset(), sized: bool = True
) -> SplitScop:
    """The scop with partial results for the reductions that would leave most of the device idle; the same scop where there are none.

    Args:
        but: updates that are left as they are. sized: also those whose lengths or results depend on symbolic sizes, to which the answer's `worth` belongs.
    """
    found, worth = dict[str, tuple[tuple[str, int, int | Affine], ...]](), list[Product]()
    for name, model in models.items():
        if name in but or not _may_be_cut(scop.statements[name]):
            continue
        cut = cut_of(scop, model, target)
        if cut is not None:
            found[name] = (cut,)
        elif scop.sizes and sized and (any_cut := any_parts(scop, model, target)) is not None:
            found[name] = any_cut.parts
            worth += any_cut.worth
    if not found or not in_order(scop):
        return SplitScop(scop)
    arrays, statements = dict(scop.arrays), dict[str, Statement]()
    notes = []
    for name, s in scop.statements.items():
        if name not in found:
            statements[name] = s
            continue
        own, ahead, behind = _parts_within_parts(scop, s, found[name])
        arrays |= {array.name: array for array in own}
        # What sets the result goes to where it is combined: into the same kernel.
        setting = [n for n, t in statements.items() if t.kind == "init" and t.target.array == s.target.array]
        moved = [_also_setting(statements.pop(n), behind[0].argument) for n in setting]
        statements |= {m.name: m for m in (*ahead, *moved, *behind)}
        along = " and ".join(f"{count} parts along {index}" for index, _, count in found[name])
        notes.append(Note("partial sums", name, f"{along}, combined by another kernel"))
    made_scop = with_statements(scop, statements, arrays)
    return SplitScop(made_scop, tuple(notes), tuple(dict.fromkeys(worth)))


def _parts_within_parts(
    scop: Scop, s: Statement, cuts: Sequence[tuple[str, int, int | Affine]]
) -> tuple[list[Array], list[Statement], list[Statement]]:
    """The partial results where the sums of a part are cut again, what comes ahead of the result, and what makes it."""
    arrays: list[Array] = []
    ahead: list[Statement] = []
    behind: list[Statement] = []
    for index, size, count in cuts:
        own, (init, s, *combining) = parts_of_sum(scop, s, index, size, count)
        scop = replace(scop, arrays={**scop.arrays, **{array.name: array for array in own}})
        arrays += own
        ahead = [init, s, *([ahead[0], *combining, *ahead[2:]] if ahead else [])]
        behind = behind or combining
    return arrays, ahead, behind


def _may_be_cut(s: Statement) -> bool:
    """Whether it updates elements by subscripts that are known, not in loops."""
    if s.kind != "update" or s.loop_depth:
        return False
    targets = [s.target] if s.argument is None else [s.target, s.argument]
    if not all(isinstance(subscript, Affine) for target in targets for subscript in target.subscripts):
        return False
    return s.argument is None or s.argument.subscripts == s.target.subscripts


def cut_of(scop: Scop, model: StatementModel, target: Target) -> tuple[str, int, int] | None:
    """Which loop of a reduction is cut, into pieces of which size, and how many there are; None where something has no number."""
    s = scop.statements[model.name]
    if not _may_be_cut(s) or not s.domain.is_box():
        return None
    ends = range(len(s.indices))
    if not all(s.domain.dim_min_val(k).is_zero() and s.domain.dim_max_val(k).is_int() for k in ends):
        return None
    out = next(a for a in model.accesses if a.write)
    free = [i for i in s.indices if out.stride(i) != 0]
    reduced = [i for i in s.indices if out.stride(i) == 0]
    reads = [a for a in model.accesses if not a.write]
    results = prod(model.extents[i] for i in free)
    side_by_side = in_columns(model)
    blocks = ceil(results / LINE) if side_by_side else results
    work = prod(model.extents[i] for i in reduced) * (min(results, LINE) if side_by_side else 1)
    wanted = min(BLOCKS_PER_CORE * target.cores // max(blocks, 1), work // LEAST_WORK)
    if not reduced or 2 * blocks > target.cores or wanted < LEAST_PARTS:
        return None
    outer = max(reduced, key=lambda i: min(model.extents[i], wanted) + (max(a.stride(i) or 0 for a in reads) > 1) / 2)
    size = _even(model.extents[outer], ceil(model.extents[outer] / wanted))
    count = ceil(model.extents[outer] / size)
    return (outer, size, count) if count >= LEAST_PARTS else None


def _even(extent: int, size: int) -> int:
    """The size of a part, or a somewhat larger one that leaves no smaller part, nor threads without work: loops of a known length are unrolled, and read 16 bytes at a time."""
    if size < 4 * LINE:
        return size
    sizes = range(ceil(size / (4 * LINE)) * 4 * LINE, 2 * size, 4 * LINE)
    return next((even for even in sizes if extent % even == 0), sizes[0])


def parts_of_sum(
    scop: Scop, s: Statement, index: str, size: int | None, count: int | Affine
) -> tuple[list[Array], list[Statement]]:
    """The partial results, and the statements that set, update and combine them (in this order), and for argmax and argmin tell the winner.

    size: how many neighbours along the index are a part; None: part p has every count-th, from p on, so that the index may have any range. count: of the parts; a
        number there.
    """
    taken = {*s.indices, *scop.arrays, *scop.sizes, *scop.statements}
    block, inside = _fresh(f"{index}_part", taken), _fresh(f"{index}_in", taken)
    whole = scop.arrays[s.target.array]
    assert s.reduction is not None, "internal: an update without a reduction"
    elements = tuple(_fresh(f"e{d}", taken) for d in range(len(whole.shape)))
    shape = (affine(count), *whole.shape)
    part = Array(name=_fresh(f"{whole.name}_part", taken), dtype=whole.dtype, shape=shape, kind="local")
    indices, value, into = _cut(s, index, size, count, block, inside)
    reached = _reached(scop, s)
    numbers = isl.Set(f"{parameters_text(scop.sizes)}{{ [b'] : 0 <= b' < {affine(count).isl_text()} }}")
    names = tuple(_fresh(f"S_{part.name}_{what}", taken) for what in ("init", "combine", "winner"))
    identity = REDUCTIONS[s.reduction].identity(whole.dtype)
    result = tuple(map(affine, elements))
    own, here = (affine(block), *result), (affine(block), *(t.substitute(value) for t in _places(s)))
    init = Statement(
        name=names[0], indices=(block, *elements), domain=_product(numbers, reached).set_tuple_name(names[0]), kind="init",
        target=Access(part.name, own), value=Const(0 if identity is None else identity, whole.dtype), reduction=s.reduction,
        span=s.span,
    )  # fmt: skip
    update = replace(
        s, indices=indices, domain=s.domain.apply(into.reverse()), target=Access(part.name, here), value=substitute(s.value, value)
    )  # fmt: skip
    combine = Statement(
        name=names[1], indices=(*elements, block), domain=_product(reached, numbers).set_tuple_name(names[1]), kind="update",
        target=Access(whole.name, result), value=Read(part.name, own, whole.dtype), reduction=s.reduction, span=s.span,
    )  # fmt: skip
    if s.argument is None or s.argument_value is None:
        return [part], [init, update, combine]
    last = scop.arrays[s.argument.array]
    best = Array(name=_fresh(f"{last.name}_part", taken), dtype=last.dtype, shape=shape, kind="local")
    which = Array(name=_fresh(f"{last.name}_which", taken), dtype=last.dtype, shape=whole.shape, kind="local")
    init = replace(init, argument=Access(best.name, own))
    update = replace(update, argument=Access(best.name, here), argument_value=s.argument_value.substitute(value))
    combine = replace(combine, argument=Access(which.name, result), argument_value=affine(block))
    winner = Statement(
        name=names[2], indices=elements, domain=reached.set_tuple_name(names[2]), kind="assign",
        target=Access(last.name, result), span=s.span,
        value=Read(best.name, (Read(which.name, result, last.dtype), *result), last.dtype),
    )  # fmt: skip
    return [part, best, which], [init, update, combine, winner]


def _cut(
    s: Statement, index: str, size: int | None, count: int | Affine, block: str, inside: str
) -> tuple[tuple[str, ...], dict[str, Affine], isl.Map]:
    """The statement's indices with the part's number (`block`) and the place in it (`inside`) for the index, that one's value, and the map from instances of the parts to those of the statement."""
    if size is None:
        assert isinstance(count, int), "internal: parts that take turns, without a number"
        value, within = affine(inside) * count + affine(block), f"0 <= {block} < {count}"
    else:
        value, within = affine(block) * size + affine(inside), f"0 <= {inside} < {size}"
    position = s.indices.index(index)
    indices = (block, *s.indices[:position], inside, *s.indices[position + 1 :])
    old = ", ".join(i if i != index else value.isl_text() for i in s.indices)
    return indices, {index: value}, isl.Map(f"{{ {s.name}[{', '.join(indices)}] -> {s.name}[{old}] : {within} }}")


def _places(s: Statement) -> tuple[Affine, ...]:
    """The target's subscripts."""
    return tuple(t for t in s.target.subscripts if isinstance(t, Affine))


def _reached(scop: Scop, s: Statement) -> isl.Set:
    """The elements that the statement updates."""
    to = ", ".join(t.isl_text() for t in _places(s))
    return s.domain.apply(isl.Map(f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}] -> [{to}] }}"))


def _also_setting(init: Statement, argument: Access | None) -> Statement:
    """What sets the best value with the winner's part in the place of the winner."""
    if argument is None or init.argument is None:
        return init
    return replace(init, argument=replace(init.argument, array=argument.array))


def _product(left: isl.Set, right: isl.Set) -> isl.Set:
    return left.flat_product(right)


def _fresh(wish: str, taken: set[str]) -> str:
    """The name, which is taken from then on."""
    name = underscored(wish, taken)
    taken.add(name)
    return name

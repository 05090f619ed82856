"""When copies of the vector operand's blocks pay: how often its elements are used, how long sums are, and what of that is asked of sizes at each call where they are symbolic."""

from __future__ import annotations

from math import ceil, prod

from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import RUN
from polyml.schedule.blocking.symbolic import Contraction
from polyml.schedule.blocking.tile_limits import UNKNOWN_VECTORS
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.large_enough import within
from polyml.schedule.schedule import Product
from polyml.target import FEW_REGISTERS, Target

__all__ = [
    "FEW_USES",
    "LEAST_CONSTANT",
    "MIN_DEPTH",
    "MIN_REUSE",
    "copy_for_few_rows",
    "packing_pays",
    "packing_worth",
    "panels_worth",
    "result_in_pieces",
    "suits_lanes_along_sum",
]

MIN_REUSE = 16
"""Times that an element of the vector operand must be read for packing to pay."""

FEW_USES = 8
"""The same where lanes do not run along its memory, so that it is copied, or gathered, or sums end with lanes of their own. Zen 3, ms: `dabe,ec->dcba` of 11 values of c and 39 terms f32 2.54 -> 1.72, `aebd,ce->dcba` of 13, 49 terms 1.62 -> 0.87,
f64 2.67 -> 1.85."""

ENDING, FEWER_ROWS = 7, 4
"""Vectors of a sum up to which adding up lanes, at its end, takes about as long as what is in them, and how many more rows there are at least, each of which ends: Zen 3, of the time, nt, f32 14 x 50 x 30,000 0.63, 12 x 40 x 3000 0.79, 11 x 33 x 500 0.66,
8 x 16 x 9000 0.67; 8 x 48 x 5000 1.41, f64 8 x 25 x 4000 1.44; f32 8 x 64 x 5000 1.29, 9 x 60 x 2000 0.97."""

ALONE, SOME_IDLE = 16, 1.08
"""Vectors of a sum up to which panels are better where each element of the result is stored alone otherwise, and lanes for each of the rows that these run along then. Zen 3, `dabe,ec->dcba` and orders like it, eight to fifteen values of c, of the time:
f64 11 and 31 terms 0.49, 9 and 35 0.46, f32 11 and 85 0.74, 11 and 97 0.39; no lanes idle, or one of sixteen: f64 8 and 29 1.33, 12 and 64 1.29, f32 15 and 62 1.0 to 1.6; longer: f64 14 and 200 1.03, 11 and 450 1.87."""

LEAST_CONSTANT = 2
"""The same for an operand that never changes, whose panels are made once."""

MIN_DEPTH = 16
"""Length of the reduction below which the tile of C is all that matters."""

FEWEST_TERMS = 4
"""The same where C goes to memory in pieces: with fewer terms nothing but C takes time, in any order."""

LEAST_PANEL = 256
"""Elements of a vector operand of symbolic size below which it is read where it lies. Where numbers say that L1 holds it, tiles are made for it; of sizes that are not known packed tiles are the ones that know how
their rows lie."""

LEAST_ROWS, LEAST_RESULTS = 5, 256
"""Rows, and elements of the result, from which on panels of a vector operand that is contiguous along the sum are worth it where nothing else is packed: lanes along the sum read it where it lies, and end with the lanes of each sum.
Zen 3, f32, lanes along the sum, of the time with panels: 150 x 300 x 3 17, 12 x 300 x 30 3.6, 5 x 67 x 30 1.3, 5 x 33 x 150 0.65."""

IDLE = 1.2
"""Lanes for each column from which on sums along lanes are better. 24 rows of 400 terms times 11, 12, 13 and 14 columns: 0.66, 0.71, 0.77 and 0.81 of the time, 300 rows 0.71, 0.77, 0.85 and 0.93."""


def packing_pays(
    model: StatementModel,
    operand: AccessModel,
    sides: Sides,
    target: Target,
    *,
    turned: bool,
    least: int = MIN_REUSE,
) -> bool:
    """Whether copies of the operand's blocks cost less than they save. turned: another statement lays the result out; least: times that an element must be read."""
    reuse = prod(model.extents[i] for i in sides.rows)
    depth = prod(model.extents[i] for i in sides.reduced)
    large = _is_large(model, operand, sides, target) or (turned and operand.stride(sides.lanes) != 1)
    return reuse >= least and depth >= MIN_DEPTH and large


def _is_large(model: StatementModel, operand: AccessModel, sides: Sides, target: Target) -> bool:
    """Whether L1 does not hold the operand beside others."""
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0 and i not in sides.batch)
    return size > target.l1_bytes // 2


def copy_for_few_rows(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether panels pay for fewer rows than MIN_REUSE, since the operand is not contiguous along the lanes: nor along the sum, or the sum is short."""
    operand, (*_, last) = sides.operand, sides.reduced
    rows, depth = (prod(model.extents[i] for i in indices) for indices in (sides.rows, sides.reduced))
    if target.vector_registers > FEW_REGISTERS or operand.stride(sides.lanes) == 1:
        return False
    if rows < FEW_USES or depth < MIN_DEPTH:
        return False
    if abs(operand.stride(last) or 0) == 1:
        lanes = target.lanes(model.itemsize)
        vectors = ceil(model.extents[last] / lanes)
        # Lanes that would run along rows, as the other operand lies, some of them idle, store each element of the result alone, lines apart.
        along = [model.extents[i] for i in sides.rows if any(other.stride(i) == 1 for other in sides.others)]
        alone = bool(sides.columns) and any(ceil(n / lanes) * lanes >= SOME_IDLE * n for n in along)
        if vectors > (ALONE if alone else min(ENDING, rows - FEWER_ROWS)):
            return False
    return _is_large(model, operand, sides, target)


def result_in_pieces(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether panels pay for the order in which C is written then, however short the sum is: that of its memory. C is more than L2 holds and has short rows, which loops that each copy a few rows of the operand for write far from
    each other, parts of lines that come from memory and go there many times. Zen 3, f32, `cadg,bgfe->fedcba` of 7 x 15 x 23 x 17 x 29 x 5 with seven terms 5.8 -> 2.2 ms; with rows of 576 bytes (`baeg,cgfd->fedcba`, a and b
    144 together) panels take 1.85 of the time."""
    out = model.itemsize * prod(e for i, e in model.extents.items() if sides.out.stride(i) != 0)
    rows = prod(model.extents[i] for i in sides.rows)
    depth = prod(model.extents[i] for i in sides.reduced)
    copied = sides.operand.stride(sides.lanes) != 1
    return (
        copied
        and target.vector_registers <= FEW_REGISTERS
        and rows >= MIN_REUSE
        and depth >= FEWEST_TERMS
        and out > target.l2_bytes
        and model.extents[sides.lanes] * model.itemsize < RUN
        and _is_large(model, sides.operand, sides, target)
    )


def packing_worth(given: Contraction, target: Target, *, turned: bool, bare: bool = False) -> tuple[Product, ...]:
    """What `packing_pays` asks of numbers, of symbolic extents at a call, but of operands that L1 holds; of lanes that a turned plan has instead of others, a vector. bare: rows are read where they lie."""
    model, sides, ends = given.model, given.sides, given.ends
    if bare and not turned and sides.operand.stride(sides.lanes) != 1 and not sides.columns:
        return panels_worth(given)
    array = given.scop.arrays[sides.operand.array]
    found: list[Product] = []
    if not turned or sides.operand.stride(sides.lanes) == 1:
        in_l1 = target.l1_bytes // 2 // array.dtype.itemsize + 1
        found.append(Product(array.shape, in_l1 if _waits_for_rows(model, sides, target) else LEAST_PANEL))
    if turned and sides.lanes in ends:
        found.append(Product((ends[sides.lanes],), target.lanes(array.dtype.itemsize)))
    for indices, least in ((sides.rows, MIN_REUSE), (sides.reduced, MIN_DEPTH)):
        known = prod(model.extents[i] for i in indices if i not in ends)
        if known < least:
            found.append(Product(tuple(ends[i] for i in indices if i in ends), -(-least // known)))
    return tuple(found)


def panels_worth(given: Contraction) -> tuple[Product, ...]:
    """When panels of an operand that is contiguous along the sum are better than lanes along the sum, of symbolic extents."""
    sides = given.sides
    results = given.extents([*sides.rows, sides.lanes])
    return (*within(given.extents(sides.rows), LEAST_ROWS), *within(results, LEAST_RESULTS))


def _waits_for_rows(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether calls like the one at hand have so few columns that rows come from memory all the time: tiles without panels fetch more of these ahead."""
    if sides.lanes not in model.likely or sides.columns:
        return False
    counts = {**model.extents, **model.likely}
    rows = prod(counts[i] for i in counts if any(other.stride(i) != 0 for other in sides.others))
    few = counts[sides.lanes] <= UNKNOWN_VECTORS * target.lanes(model.itemsize)
    return few and rows * model.itemsize > 4 * target.l2_bytes


def suits_lanes_along_sum(given: Contraction, target: Target) -> bool:
    """Whether fewer columns than lanes would leave many of these idle, and both operands are contiguous along the sum: lanes run along that then (strategy/contractions/side_by_side.py), and nothing is turned."""
    model, sides = given.model, given.sides
    operand, columns = sides.operand, model.extents[sides.lanes]
    lanes = target.lanes(model.itemsize)
    idle = ceil(columns / lanes) * lanes / columns >= IDLE and columns * model.itemsize < target.line_bytes
    along = all(access.stride(sides.reduced[-1]) == 1 for access in (operand, *sides.others))
    plain = len(sides.reduced) == 1 and not sides.columns and not sides.batch and len(sides.others) == 1
    near = columns * model.extents[sides.reduced[-1]] * model.itemsize <= target.l2_bytes
    return plain and along and idle and near and not given.is_constant

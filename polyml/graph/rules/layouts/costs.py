"""What a product of two tensors costs in the layouts that its operands and its result have: an estimate in cycles, for choosing among layouts (rules/layouts/laid_out.py).

Lanes run along the result's last index, and along what lies beside it in the operand that has it. Short rows leave lanes idle, and few rows of the other operand leave a register tile bound by its loads. An operand that
is contiguous along an index that both have, beside the result, is read with the distance of its rows, for each value of that index again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, inf, prod

from polyml.records import dataclass
from polyml.target import FEW_REGISTERS

__all__ = [
    "LINE",
    "PLACED",
    "Layout",
    "Machine",
    "Roles",
    "block_copy_cost",
    "copy_cost",
    "is_laid_in_blocks",
    "product_cost",
    "roles_of",
    "side_by_side_cost",
]

TALLEST, WIDEST = 14, 4
"""Rows and vectors of a register tile, at most."""

COPIED, PLACED, SCATTERED = 0.4, 1.3, 4.0
"""Cycles for an element that is copied as it lies, that changes its place in blocks that registers transpose, and that goes there alone."""

SHORT = 8
"""Lanes from which on an element of a block that registers transpose costs no more than that."""

FAR = 24.0
"""Cycles for an element of what no cache holds that comes alone, a line for each."""

MIN_REUSE = 16
"""Rows from which on operands are packed (schedule/blocking/worth.py)."""

MOST_LEFT = 4
"""Columns that are left, at most (schedule/blocking/register_tile.py)."""

MOST_ROWS = 1024
"""Terms of a strip (schedule/blocking/strips.py)."""

LARGE = 8
"""How many times as much as that cache a tensor takes whose lines are gone before the next row of one is needed."""

BLOCK = 8
"""Neighbours that go together, for what is copied to cost no more than that."""

BYTES = 7.0
"""That memory delivers or takes in a cycle."""

LINE = 64
"""Bytes that come with each element of a result that is stored alone, where no cache holds all of it."""

STORED = 2.0
"""Cycles for a vector of the result, which may be part of one."""

NEAR = 64
"""Half of L1 is this part of the cache that a core keeps close: an operand that fits is not packed (schedule/blocking/worth.py)."""

LOADED = 1.5
"""Cycles of sums side by side for each one of multiply-adds: each term of each row and column is loaded for a few of them."""

AGAIN = 0.5
"""Of the time that memory takes for a large result, what its pieces cost more than rows: parts of lines, which come from memory first. Zen 3, of the time without blocks: `aged,cbfg->fedcba` with 11 values of a, 20 MB, 1.21 (without
this the estimate is 0.85), `cadg,bgfe->fedcba` with nine in f64, 20 MB, 1.18 (0.83), in f32, 10 MB, 0.74 (0.68)."""

PIECE = 1.5
"""Cycles for each piece of a block beside its loads and stores."""

REGION = 4000.0
"""Cycles for a loop nest of its own, short as it may be."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Of a core: bytes of a vector, vector registers, whether vectors are executed in two halves, and bytes of the cache that it keeps close."""

    vector_bytes: int
    registers: int
    split: bool
    cache: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The indices of both operands and of the result, in the order of memory. constant: whether the operands are, so that panels of them are made once."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    result: tuple[str, ...]
    constant: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class Roles:
    """Indices of the result that only the left operand has, those that only the right one has, those that both have; and of the sum, which both have."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    batch: tuple[str, ...]
    reduced: tuple[str, ...]


def roles_of(layout: Layout) -> Roles | None:
    """None where this is no product of two operands that have all of the sum's indices."""
    left, right, result = (set(order) for order in (layout.left, layout.right, layout.result))
    reduced = tuple(i for i in layout.left if i not in result)
    if not result <= left | right or set(reduced) != right - result or not reduced:
        return None
    return Roles(
        tuple(i for i in layout.result if i not in right),
        tuple(i for i in layout.result if i not in left),
        tuple(i for i in layout.result if i in left and i in right),
        reduced,
    )


def product_cost(layout: Layout, extents: Mapping[str, int], itemsize: int, machine: Machine) -> float:
    """Cycles of the sums, and of bringing the operands there."""
    roles = roles_of(layout)
    assert roles is not None, "internal: no product"
    last = layout.result[-1]
    lanes = max(1, machine.vector_bytes // itemsize)
    work = prod(extents.values())
    result = prod(extents[i] for i in layout.result) * itemsize
    written = result / BYTES if result > machine.cache else 0.0
    if last in roles.batch:
        return written + min(
            _batch_lanes(layout, roles, extents, itemsize, machine),
            _other_lanes(layout, roles, extents, itemsize, machine),
        )
    ours = last in roles.left
    vectors, others = (layout.left, layout.right) if ours else (layout.right, layout.left)
    columns, rows = (roles.left, roles.right) if ours else (roles.right, roles.left)
    row = _beside(layout.result, vectors, columns, extents)
    most = max((extents[i] for i in rows), default=1)
    # With rows of less than two vectors each element of the large operand is broadcast for one; where lanes run along them as they are, nothing is transposed, either.
    least = min((extents[i] for i in (*roles.left, *roles.right)), default=1)
    single = len(roles.left) == len(roles.right) == len(roles.reduced) == 1 and not roles.batch
    matrices = single and least >= 2 * lanes and machine.registers <= FEW_REGISTERS
    # Columns that are left of whole vectors have lanes along a sum that the other operand is contiguous along (schedule/blocking/rest_columns.py); two loads go with each of their products.
    plain = matrices and others[-1] in roles.reduced
    left = row % lanes if plain and row > lanes and row % lanes <= MOST_LEFT else 0
    sums = work / (row * most) * (_tile(row - left, most, lanes, machine) + left * most / lanes)
    once = layout.constant[0 if ours else 1]
    # Of short vectors, four in f64, an element has more of the loads, shuffles and stores that transpose a block: 16 for 16 elements; eight have 40 for 64.
    placed = PLACED * max(1.0, SHORT / lanes) if matrices else PLACED
    cycles = sums if once else sums + _vectors(vectors, last, roles, extents, itemsize, machine, placed)
    unpacked = prod(extents[i] for i in vectors) * itemsize <= machine.cache // NEAR
    brought = _rows(others, rows, roles, extents, itemsize, machine, unpacked=unpacked)
    # Rows that are read where they lie come while others are multiplied with; so do strips of the other operand (schedule/blocking/strips.py), but not what longer sums are packed from.
    hidden = others[-1] in roles.reduced and (plain or prod(extents[i] for i in roles.reduced) > MOST_ROWS)
    cycles += max(0.0, brought - sums) if hidden else brought
    return written + cycles + STORED * prod(extents[i] for i in layout.result) / row * ceil(row / lanes)


def copy_cost(
    source: Sequence[str], target: Sequence[str], extents: Mapping[str, int], itemsize: int, machine: Machine
) -> float:
    """Cycles for all elements to change their places; none where they have them."""
    if tuple(source) == tuple(target):
        return 0.0
    elements = prod(extents[i] for i in source)
    run, k = 1, 1
    while k <= len(source) and source[-k] == target[-k]:
        run, k = run * extents[source[-k]], k + 1
    if run > 1:
        each = COPIED + (PLACED - COPIED) * min(1.0, BLOCK / run)
        # Short rows of a large tensor come alone, too.
        each = max(each, FAR / run) if elements * itemsize > LARGE * machine.cache else each
    else:
        each = min(SCATTERED, PLACED * max(1.0, BLOCK / min(extents[source[-1]], extents[target[-1]])))
    moved = 2 * elements * itemsize
    return elements * each + (moved / BYTES if moved > 2 * machine.cache else 0.0) + REGION


def is_laid_in_blocks(
    layout: Layout,
    result: Sequence[str],
    roles: Roles,
    extents: Mapping[str, int],
    itemsize: int,
    machine: Machine,
) -> bool:
    """Whether the product's result, in the layout, goes to where `result` has it a block at a time, while a cache has it (schedule/blocking/laid_blocks.py): short rows of it are parts of long ones in the layout."""
    last, lanes = result[-1], max(1, machine.vector_bytes // itemsize)
    ours = roles.left if last in roles.left else roles.right
    operand = layout.left if last in roles.left else layout.right
    tail = layout.result[len(layout.result) - len(ours) :]
    long = layout.result[-1] == last and set(tail) == set(ours) and len(ours) > 1 and operand[-len(ours) :] == tail
    terms = prod(extents[i] for i in roles.reduced) * 2 * machine.vector_bytes
    few = machine.registers <= FEW_REGISTERS and not roles.batch
    return (
        few
        and long
        and tuple(result) != layout.result
        and extents[last] % lanes != 0
        and terms <= 2 * machine.cache // NEAR
    )


def block_copy_cost(result: Sequence[str], extents: Mapping[str, int], itemsize: int, machine: Machine) -> float:
    """Cycles for pieces as long as the result's rows to go to where they belong."""
    lanes = max(1, machine.vector_bytes // itemsize)
    run, elements = extents[result[-1]], prod(extents[i] for i in result)
    large = elements * itemsize > LARGE * machine.cache
    again = AGAIN * elements * itemsize / BYTES if large else 0.0
    return elements / run * (PIECE + run // lanes + (run % lanes).bit_count()) + again


def side_by_side_cost(layout: Layout, extents: Mapping[str, int], itemsize: int, machine: Machine) -> float | None:
    """Cycles of the sums where lanes run along them, few rows and some columns side by side in registers (schedule/strategy/contractions/side_by_side.py); None where the operands do not lie so."""
    roles, lanes = roles_of(layout), max(1, machine.vector_bytes // itemsize)
    assert roles is not None, "internal: no product"
    rows = roles.right if layout.result[-1] in roles.left else roles.left
    if layout.left[-1] != layout.right[-1] or prod(extents[i] for i in rows) >= MIN_REUSE:
        return None
    sums = prod(extents.values()) / lanes * _idle(extents[layout.left[-1]], lanes) * (1.0 if machine.split else 0.5)
    return LOADED * sums


def _idle(row: int, lanes: int) -> float:
    """Lanes that are there for each that is used."""
    return ceil(row / lanes) * lanes / row


def _batch_lanes(layout: Layout, roles: Roles, extents: Mapping[str, int], itemsize: int, machine: Machine) -> float:
    """Cycles of the sums where lanes run along an index of both operands: two loads for each product, of what is contiguous along it or a copy. Rows of one operand share what the other one's tile loads, which comes
    again for each of them."""
    last, lanes = layout.result[-1], max(1, machine.vector_bytes // itemsize)
    turned = [order for order in (layout.left, layout.right) if order[-1] != last]
    copied = PLACED * sum(prod(extents[i] for i in order) for order in turned)
    sums = prod(extents.values()) / lanes * _idle(extents[last], lanes)
    sides = (layout.left, roles.left, layout.right, roles.right), (layout.right, roles.right, layout.left, roles.left)
    again = min(
        _again(rows, columns_of, 1, extents, itemsize, machine)
        + _again(
            columns, rows_of, min(TALLEST, max((extents[i] for i in rows_of), default=1)), extents, itemsize, machine
        )
        for rows, rows_of, columns, columns_of in sides
    )
    return copied + max(sums, again)


def _again(
    operand: Sequence[str],
    uses: Sequence[str],
    rows: int,
    extents: Mapping[str, int],
    itemsize: int,
    machine: Machine,
) -> float:
    """Cycles in which an operand that the cache which a core keeps close does not hold comes for each of its uses, of which a tile has so many."""
    size = prod(extents[i] for i in operand) * itemsize
    return size * ceil(prod(extents[i] for i in uses) / rows) / BYTES if size > machine.cache else 0.0


def _other_lanes(layout: Layout, roles: Roles, extents: Mapping[str, int], itemsize: int, machine: Machine) -> float:
    """The same with lanes along what an operand is contiguous along, each element of the result stored alone; twice the sums where each element of a large other operand brings a line."""
    lanes, best = max(1, machine.vector_bytes // itemsize), inf
    for own, other in ((layout.left, layout.right), (layout.right, layout.left)):
        large = prod(extents[i] for i in other) * itemsize > machine.cache // 8
        if own[-1] not in roles.batch:
            waits = 2.0 if large and other[-1] not in roles.reduced else 1.0
            best = min(best, waits * _idle(extents[own[-1]], lanes))
    cycles = prod(extents.values()) / lanes * best * (1.0 if machine.split else 0.5)
    result = prod(extents[i] for i in layout.result)
    # One value of the last index after another: the line of an element has left when its neighbour comes.
    again = min(LINE, extents[layout.result[-1]] * itemsize) / BYTES if result * itemsize > machine.cache else 0.0
    return cycles + (SCATTERED + again) * result


def _beside(result: Sequence[str], operand: Sequence[str], columns: Sequence[str], extents: Mapping[str, int]) -> int:
    """Elements of the result's last indices that lie side by side in the operand, too: they are one index."""
    found, at = extents[result[-1]], operand.index(result[-1])
    for k in range(2, len(result) + 1):
        before = at - k + 1
        if before < 0 or result[-k] not in columns or operand[before] != result[-k]:
            break
        found *= extents[result[-k]]
    return found


def _vectors(
    order: Sequence[str],
    last: str,
    roles: Roles,
    extents: Mapping[str, int],
    itemsize: int,
    machine: Machine,
    placed: float,
) -> float:
    """Cycles for the operand that has the lanes, which is packed. placed: of an element in a block that registers transpose."""
    elements, first = prod(extents[i] for i in order), order[-1]
    far = elements * itemsize > machine.cache
    if first == last:
        each = COPIED
    elif first in roles.batch:
        each = FAR if far else SCATTERED
    else:
        each = min(SCATTERED, placed * max(1.0, BLOCK / extents[first]))
    return max(elements * each, elements * itemsize / BYTES if far else 0.0)


def _rows(
    order: Sequence[str],
    rows: Sequence[str],
    roles: Roles,
    extents: Mapping[str, int],
    itemsize: int,
    machine: Machine,
    *,
    unpacked: bool,
) -> float:
    """The same for the operand whose elements are broadcast."""
    elements, first = prod(extents[i] for i in order), order[-1]
    far = elements * itemsize > machine.cache
    if first in roles.reduced or elements * itemsize < machine.cache // 8:
        each = 0.0
    elif first in roles.batch:
        each = FAR if far else SCATTERED
    else:
        # Beside an operand that is read where it lies, tiles run along whichever rows suit them; beside panels along the last ones.
        each = COPIED if first == rows[-1] or (unpacked and extents[first] >= BLOCK) else SCATTERED
    return max(elements * each, elements * itemsize / BYTES if far else 0.0)


@lru_cache(maxsize=512)
def _tile(columns: int, rows: int, lanes: int, machine: Machine) -> float:
    """Cycles of one term of `rows` times `columns` sums, in the best register tile, edges included."""
    best = 0.0
    for width, cost in ((lanes, 1.0 if machine.split else 0.5), *(((lanes // 2, 0.5),) if machine.split else ())):
        for vectors in range(1, min(WIDEST, ceil(columns / width)) + 1):
            room = (machine.registers - 3 - vectors) // vectors
            for tall in range(1, min(TALLEST, room, rows) + 1):
                full, rest = divmod(columns, vectors * width)
                wide = ((full, vectors), (1, ceil(rest / width)))
                high = ((rows // tall, tall), (1, rows % tall))
                cycles = sum(
                    a * b * (max(cost * r * v, (r + v) / 2, 4.0) + 0.1 * r + 0.25 * v)
                    for a, v in wide
                    for b, r in high
                    if v and r
                )
                best = min(best, cycles) if best else cycles
    return best

"""Rows side by side that read the same elements: a stencil's row reads its neighbours', so several rows at once load each of them once.

Short rows (strips of a tile) that have no elements in common go side by side, too: where a row is a few vectors, its first and last one under masks and the end of its loop cost as much as several of them.

Source: Callahan, Carr, Kennedy, "Estimating interlock and improving balance for pipelined architectures" (JPDC 1988), on unroll-and-jam.
"""

from __future__ import annotations

from polyml.expressions import Apply, Expr, Read, Subscript, reads_of
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts
from polyml.sets.affine import Affine, affine

__all__ = ["neighbouring_rows"]

ROWS = (4, 2)
"""Rows at once: more share hardly more, fewer where registers are few."""

WORTH = 0.9
"""Of the loads of single rows, at most."""

SHORT = 32
"""Vectors of a short row."""


def neighbouring_rows(band: Band, lanes: int, facts: Facts) -> tuple[int | None, int]:
    """The member whose iterations should be jammed because they read common elements, or are short, and how many; (None, 1) where that saves too little.

    The elements that the rows share, and one more per row, must fit into the registers; so must all others where vectors are as long as lines, since neighbours along a row are shifted out of
    registers there (codegen/llvm/memory/neighbours.py).
    """
    single = _loads(band.core, None, 1, facts)
    best: tuple[int | None, int] = (None, 1)
    least = WORTH * single
    for k, member in enumerate(band.indices):
        for rows in ROWS:
            if k == lanes or band.extents[k] < rows:
                continue
            loads = _loads(band.core, member[band.core], rows, facts)
            if (
                loads / rows < least
                and _registers(band.core, member[band.core], rows, facts) <= facts.target.vector_registers
            ):
                best, least = (k, rows), loads / rows
    if best[0] is None and band.extents[lanes] <= SHORT * facts.lanes(band.core):
        # The innermost of the others: what lies side by side in memory stays near.
        for k in reversed(range(len(band.indices))):
            rows = ROWS[0]
            if k != lanes and band.extents[k] >= rows and rows * (single + 1) <= facts.target.vector_registers:
                return k, rows
    return best


def _loads(name: str, index: str | None, rows: int, facts: Facts) -> int:
    """Different elements that the statement reads in so many iterations along the index."""
    return len(_uses(name, index, rows, facts))


def _registers(name: str, index: str | None, rows: int, facts: Facts) -> int:
    """Vectors that are wanted at once by so many rows: what several of them read, one per row for its result, and one for whatever is read once.

    What the same rows add up alike is one vector, their sum (codegen/passes/sums/common_sums.py): its terms are operands in memory.
    """
    uses, target = _uses(name, index, rows, facts), facts.target
    if target.vector_bytes >= target.line_bytes:
        return len(uses) + rows
    sum_of = _sums(facts.scop.statements[name].value) if facts.options.relax_reductions else {}
    wanted: set[object] = set()
    for element, by_row in uses.items():
        if len(by_row) > 1:
            alike = all(read in sum_of for read in by_row.values())
            wanted.add(tuple((row, sum_of[read]) for row, read in by_row.items()) if alike else element)
    return len(wanted) + rows + 1


def _sums(value: Expr) -> dict[Read, int]:
    """The reads that are terms of a sum in the value, each with the number of that sum."""
    found: dict[Read, int] = {}
    sums = [value]
    for number, total in enumerate(sums):
        stack = [total]
        while stack:
            match stack.pop():
                case Apply(op="add", args=args):
                    stack += args
                case Read() as read:
                    found[read] = number
                case Apply(args=args):
                    sums += args
    return found


def _uses(
    name: str, index: str | None, rows: int, facts: Facts
) -> dict[tuple[str, tuple[Subscript, ...]], dict[int, Read]]:
    """The elements that the statement reads in so many iterations along the index, each with the rows that do, and by which read."""
    found: dict[tuple[str, tuple[Subscript, ...]], dict[int, Read]] = {}
    reads = dict.fromkeys(reads_of(facts.scop.statements[name].value))
    for row in range(rows):
        moved = {} if index is None else {index: affine(index) + row}
        for read in reads:
            subscripts = tuple(s.substitute(moved) if isinstance(s, Affine) else s for s in read.subscripts)
            found.setdefault((read.tensor, subscripts), {})[row] = read
    return found

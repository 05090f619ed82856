"""What an innermost loop computes from elements that stay the same is computed ahead of it.

LLVM does so as well, but in the middle of passes that take five times as long as all others that the emitter's code needs (`machine.py`): they rotate loops, count them otherwise,
and do the rest several times over. Of plain loads it does: they are left to it. Of elements that each lane has from elsewhere it does not, since it does not see which array they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import field, replace
from typing import Literal, assert_never

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.math.quotient import parts_of, pays
from polyml.codegen.llvm.reductions.scan import scan_numbers
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, Block, For, Node, UpdateArgument
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Unchanging", "choose_divisions", "compute_ahead", "unchanging"]


@dataclass(frozen=True, slots=True)
class Unchanging:
    """What a loop computes again and again, each once. values: the largest expressions of one value for all iterations. divisors: what others are divided by, of one value as well.
    reads: elements beside those that lanes have from places apart, each the same one in all iterations. scans: recurrences in lanes whose factors stay the same."""

    values: dict[Expr, None] = field(default_factory=dict)
    divisors: dict[Expr, None] = field(default_factory=dict)
    reads: dict[Read, None] = field(default_factory=dict)
    scans: list[Assign] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.values or self.divisors or self.reads or self.scans)


def unchanging(loop: For, is_apart: Callable[[Read], bool] | None = None) -> Unchanging:
    """What every iteration of the loop computes, whatever conditions in it say. Nothing for a loop with loops inside.

    Args:
        is_apart: whether lanes have the element from places that are not side by side; None: there are no lanes.
    """
    found = Unchanging()
    if any(isinstance(node, For) for node in walk_nodes(loop.body)):
        return found
    values = [value for value in _values(loop.body) if isinstance(value, Apply)]
    scans = [node for node in _assigns(loop.body) if node.scan is not None and node.scan.factor is not None]
    same = _Same(loop.variable, _written(loop) if values or scans else set(), found, is_apart)
    for node in scans:  # what a scan makes of its factor has blocks of its own, which LLVM moves no loads across
        factor = None if node.scan is None else node.scan.factor
        if isinstance(factor, Read) and same.change(factor) == "stays":
            found.reads[factor] = None
        elif isinstance(factor, Apply) and same.change(factor) == "stays":
            found.values[factor] = None
    for node in scans if loop.kind == "vector" and not loop.masked else ():
        factors = () if node.scan is None else (node.scan.factor, node.scan.second)
        if all(factor is None or same.change(factor) != "moves" for factor in factors):
            found.scans.append(node)
    for value in values:
        if same.change(value) == "stays":
            found.values[value] = None
    return found


def compute_ahead(state: State, loop: For, found: Unchanging) -> None:
    """Writes their values, which the loop's body then takes: to be called where the loop is sure to have an iteration."""
    for expr in found.values:
        state.held[expr] = evaluate(state, expr)
    for read in found.reads:
        state.held[read] = evaluate(state, read)
    for node in found.scans:
        assert node.scan is not None, "internal: an assignment that is no scan"
        state.prepared[node.scan] = scan_numbers(state, node, node.scan, loop.width)
    for divisor in found.divisors:
        value = evaluate(state, divisor)
        if isinstance(divisor, Apply):
            state.held[divisor] = value
        if value.lanes == 1:
            worth = pays(state.builder, value.type.bits, max(loop.width, state.width), _vectors(loop))
            state.reciprocals[divisor] = parts_of(state.builder, value) if worth else None


def choose_divisions(state: State, loop: For) -> None:
    """Says of the divisors of a loop that runs once which ones are divided by as they are."""
    for divisor in unchanging(loop).divisors:
        if not pays(state.builder, 8 * divisor.dtype.itemsize, max(loop.width, state.width), _vectors(loop)):
            state.reciprocals[divisor] = None


def _vectors(loop: For) -> int | None:
    """How many vectors an innermost loop computes, where that is known."""
    span = loop.upper - loop.lower
    return -(-span.constant // max(1, loop.width)) if span.is_constant else None


def _written(loop: For) -> set[str]:
    found: set[str] = set()
    for node in walk_nodes(loop.body):
        if isinstance(node, Assign):
            found.add(node.target.variable)
        elif isinstance(node, UpdateArgument):
            found |= {node.best.variable, node.argument.variable}
    return found


def _assigns(nodes: Sequence[Node]) -> Iterator[Assign]:
    """The assignments under no condition."""
    for node in nodes:
        if isinstance(node, Assign):
            yield node
        elif isinstance(node, Allocate | Block):
            yield from _assigns(node.body)


def _values(nodes: Sequence[Node]) -> Iterator[Expr]:
    """What nodes compute under no condition."""
    for node in nodes:
        match node:
            case Assign():
                yield node.value
            case UpdateArgument():
                yield node.candidate
            case Allocate() | Block():
                yield from _values(node.body)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class _Same:
    """What stays the same while `variable` counts and the arrays `written` change. found: the largest parts that do, of expressions that do not."""

    variable: str
    written: Set[str]
    found: Unchanging
    is_apart: Callable[[Read], bool] | None

    def change(self, expr: Expr) -> Literal["constant", "stays", "moves"]:
        """Whether a value stays the same; constants are told apart. Where it moves, those of its parts are found that stay."""
        match expr:
            case Const():
                return "constant"
            case Read():
                same = expr.tensor not in self.written and not any(map(self.is_moved, expr.subscripts))
                return "stays" if same else "moves"
            case IndexValue():
                return "moves" if self.variable in expr.affine.variables() else "stays"
            case Apply():
                pass
            case _:
                assert_never(expr)
        # What a condition chooses between is not always computed.
        always = 1 if expr.op == "select" else len(expr.args)
        found = [self.change(arg) for arg in expr.args[:always]]
        if always < len(expr.args):
            chosen = replace(self, found=Unchanging())
            found += [chosen.change(arg) for arg in expr.args[always:]]
        if "moves" not in found:
            return "stays" if "stays" in found else "constant"
        for position, (arg, change) in enumerate(zip(expr.args[:always], found, strict=False)):
            if change != "stays":
                continue
            if expr.op == "div" and position == 1:
                self.found.divisors[arg] = None
            elif isinstance(arg, Apply):
                self.found.values[arg] = None
            elif isinstance(arg, Read) and self.is_apart is not None and self.is_apart(arg):
                self.found.reads[arg] = None
        return "moves"

    def is_moved(self, subscript: Subscript) -> bool:
        return not isinstance(subscript, Affine) or self.variable in subscript.variables()

"""Additions by the units for products, where those have nothing to do.

Some cores add, and find minima and maxima, in units of their own, beside as many for multiply-adds (`Target.adds_apart`). A loop of sums and minima, such as a product of shortest paths or distances along
the axes, leaves the latter idle. There `x + y` is `fma(x, 1, y)`, which is the same number to the last bit, in as many places as makes both kinds of units equally busy:

    t = min(t, x + y); ..     ->      t = min(t, fma(x, 1, y)); ..

Not where loads or stores take as long anyway, and no sums of what one iteration hands on to the next: those wait for each other, and an addition takes half the time of a multiply-add.
"""

from __future__ import annotations

from dataclasses import field

from polyml.codegen.llvm.ir import Value, constant
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, If, UpdateArgument
from polyml.codegen.rewrite import subscript_variables, walk_nodes
from polyml.expressions import Apply, Expr, Read, reads_of
from polyml.records import dataclass

__all__ = ["add_by_product", "shared"]

LEAST = 6
"""The part of a loop's additions that has to move, else it gains less than the copies cost that some of them take: a multiply-add overwrites an operand."""

FUNCTION = 12
"""Multiply-adds of what is no instruction of its own: divisions, exponentials."""

_FREE = frozenset({"neg", "abs", "copysign", "select", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "relu"})
"""Instructions of any unit, or of half a cycle on one of either kind."""


@dataclass(slots=True)
class _Units:
    """What an iteration asks of the core. carried: what is written in it, and not made anew. added, multiplied: instructions of either kind of unit; free: sums among those added that the other kind may make; loads: elements, each once."""

    loop: For
    precise: bool
    carried: set[str]
    added: int = 0
    multiplied: int = 0
    stores: int = 0
    free: dict[Expr, None] = field(default_factory=dict)
    loads: dict[Read, None] = field(default_factory=dict)
    seen: set[Expr] = field(default_factory=set)

    def assign(self, step: Assign, *, stored: bool) -> None:
        if step.scan is not None or step.reduction == "prod":
            self.multiplied += 1
        elif step.reduction in ("min", "max") or (step.reduction == "sum" and not self.is_product(step.value)):
            self.added += 1
        if any(read.tensor in self.carried for read in reads_of(step.value)):
            self.carried.add(step.target.variable)
        self.stores += stored and self.loop.variable in subscript_variables(step.target.subscripts)
        self.value(step.value)

    def value(self, expr: Expr) -> None:
        """Counts the instructions of an expression that has not been seen yet."""
        if expr in self.seen:
            return
        self.seen.add(expr)
        match expr:
            case Read() if self.loop.variable in subscript_variables(expr.subscripts):
                self.loads[expr] = None
            case Apply():
                self.operation(expr)
                for arg in expr.args:
                    self.value(arg)
            case _:
                pass

    def operation(self, expr: Apply) -> None:
        match expr.op:
            case "add" | "sub" if any(self.is_product(arg) for arg in expr.args):
                pass  # a multiply-add, which counts as its product
            case "add" | "sub":
                self.added += 1
                if expr.dtype.name in ("f32", "f64") and not any(r.tensor in self.carried for r in reads_of(expr)):
                    self.free[expr] = None
            case "min" | "max":
                self.added += 1
            case "mul":
                self.multiplied += 1
            case op if op not in _FREE:
                self.multiplied += FUNCTION
            case _:
                pass

    def is_product(self, expr: Expr) -> bool:
        """Whether it becomes one instruction with the sum that it is a term of."""
        return not self.precise and isinstance(expr, Apply) and expr.op == "mul"


def shared(state: State, loop: For) -> frozenset[Expr]:
    """The sums that units for products are to make while the loop runs; none of a loop without lanes, or with loops inside."""
    if not state.builder.module.instructions.adds_apart or (state.lanes is None and loop.kind != "vector"):
        return frozenset()
    steps = list(walk_nodes(loop.body))
    if any(isinstance(step, For | If) for step in steps):
        return frozenset()
    own = {step.variable.name for step in steps if isinstance(step, Allocate)}
    carried = {step.target.variable for step in steps if isinstance(step, Assign)} - own
    units = _Units(loop, state.precise, carried)
    for step in steps:
        if isinstance(step, Assign):
            slot = state.slots.get(step.target.variable)
            units.assign(step, stored=slot is not None and slot.variable.scope != "register")
        elif isinstance(step, UpdateArgument):
            units.added += 1
            units.value(step.candidate)
    free, busy = list(units.free), max(len(units.loads), 2 * units.stores)
    count = min(len(free), (units.added - units.multiplied) // 2, units.added - busy)
    if LEAST * count < max(LEAST, units.added):
        return frozenset()
    # Spread evenly: neither kind of unit waits for the other.
    return frozenset(expr for at, expr in enumerate(free) if at * count // len(free) < (at + 1) * count // len(free))


def add_by_product(state: State, x: Value, y: Value) -> Value:
    """`x + y` as a multiply-add by one, which LLVM must not know to be one: it would add."""
    b = state.builder
    known = constant(x.type, 1.0)
    one = state.unforeseen.get(known)
    if one is None:
        number = constant(x.type.of(1), 1.0)  # vectors of part of a register, or of several, have no constraint
        with b.into(state.entry):
            one = b.splat(b.emit(number.type, f'call {number.type} asm "", "=v,0"({number})'), x.type.lanes)
        state.unforeseen[known] = one
    return b.intrinsic("fma", x, one, y)

"""Recurrences in lanes apart from what goes into them.

A vector of a recurrence is a chain of some forty cycles (llvm/reductions/scan.py), and a core has as many vectors under way as its schedulers hold instructions that wait. What the recurrence starts from, such as the sum of an
element's neighbours, makes the chain longer and is more of those. So a few vectors of it are made ahead, which wait for nothing, into memory that stays in L1; then the recurrence runs over these, while
the next ones are made.

    vector for (j ..) x[i, j] = scan_sum(carry, a, y[i - 1, j - 1] + y[i - 1, j] + ..);
    -> for (block ..) { vector for (j in block) t[j - block] = y[i - 1, j - 1] + y[i - 1, j] + ..; vector for (j in block) x[i, j] = scan_sum(carry, a, t[j - block]); }

Short vectors, whose recurrence is a shorter chain, are made one ahead, in a register, since a store and a load of each are as many instructions as they save waiting:

    -> r = y[i - 1, j - 1] + y[i - 1, j] + ..;
       vector for (j ..) { s = y[i - 1, j + 3] + y[i - 1, j + 4] + ..; x[i, j] = scan_sum(carry, a, r); r = s; }

That such a loop has lanes means that nothing that goes into an element depends on those before it (passes/sums/scans.py).
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.rewrite import variables_of, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, substitute, walk
from polyml.new_names import fresh
from polyml.renewed import renewed
from polyml.sets.affine import affine, minimum

__all__ = ["split_scans"]

VECTORS = 16
"""Of a block: few enough for the core to look ahead into the next one."""

LEAST_VECTORS = 24
"""Of a row, where that is known: shorter ones are over before anything waits."""

STEP, EXTREMUM = 9, 13
"""Cycles of a step of a scan, a permutation and what it is for: a multiply-add; an addition and an extremum that hands NaN on, which takes three instructions."""

WAITS = 280
"""Instructions times cycles that they wait, of a vector, from which on storing it pays: two and a half cycles of schedulers with some hundred places."""

SHORT_WAITS = 80
"""The same for vectors made one ahead, which takes no instructions."""


def split_scans(function: Function, *, short: bool) -> Function:
    """The function with what goes into recurrences made ahead, where that is much. short: vectors are shorter than a line."""
    taken: set[str] = set()

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(nodes, (visit(node) for node in nodes))

    def visit(node: Node) -> Node:
        if isinstance(node, For) and node.kind == "vector":
            if not _is_recurrence(node):
                return node
            if short:
                return _one_ahead(node, function, taken) if _waits(node) >= SHORT_WAITS else node
            return _split(node, function, taken) if _waits(node) >= WAITS else node
        return with_body(node, body)

    changed = body(function.body)
    return function if changed is function.body else replace(function, body=changed)


def _is_recurrence(loop: For) -> bool:
    """Whether the loop is nothing but vectors of one recurrence, many of them."""
    span = loop.upper - loop.lower
    if loop.masked or loop.width == 1 or (span.is_constant and span.constant < LEAST_VECTORS * loop.width):
        return False
    if loop.step != len(loop.body) * loop.width or VECTORS % len(loop.body):  # rows side by side
        return False
    return all(isinstance(node, Assign) for node in loop.body)


def _waits(loop: For) -> int:
    """How many instructions of a vector wait, times how long; none where the recurrence's factor has to be computed as well."""
    found = []
    for node in loop.body:
        scan = node.scan if isinstance(node, Assign) else None
        if not isinstance(node, Assign) or scan is None or scan.second is not None or scan.reset is not None:
            return 0
        if scan.factor is not None and loop.variable in variables_of(scan.factor):
            return 0
        step = STEP if node.reduction in (None, "sum") else EXTREMUM
        found.append(_instructions(node.value) * step * loop.width.bit_length())
    return min(found)


def _instructions(expr: Expr) -> int:
    """Of a vector of it, those that move lanes aside."""
    found = 0
    for node in walk(expr):
        if isinstance(node, Apply):
            found += 3 if node.op in ("min", "max") and node.dtype.is_float else 1
    return found


def _split(loop: For, function: Function, taken: set[str]) -> Node:
    if not taken:
        taken |= names_in(function)
    steps = [node for node in loop.body if isinstance(node, Assign)]
    name, start = (fresh(text, taken) for text in (f"{steps[0].target.variable}_ahead", f"{loop.variable}_block"))
    block = VECTORS * loop.width
    part = replace(loop, lower=affine(start), upper=minimum((loop.upper, affine(start) + block)))
    made, scanned = [], []
    for number, node in enumerate(steps):
        place = (affine(loop.variable) - affine(start) + number * loop.width,)
        made.append(Assign(target=Place(name, place), value=node.value))
        scanned.append(replace(node, value=Read(name, place, node.value.dtype)))
    variable = Variable(name=name, dtype=steps[0].value.dtype, shape=(affine(block),), scope="local", alignment=64)
    inner = (replace(part, body=tuple(made)), replace(part, body=tuple(scanned)))
    blocks = For(variable=start, lower=loop.lower, upper=loop.upper, step=block, body=inner)
    return Allocate(variable=variable, body=(blocks,))


def _one_ahead(loop: For, function: Function, taken: set[str]) -> Node:
    """Each vector's part made while the one before is scanned. The last vectors, behind which nothing may be read, are a loop of their own; the first part is made where there are any."""
    if not taken:
        taken |= names_in(function)
    steps = [node for node in loop.body if isinstance(node, Assign)]
    dtype = steps[0].value.dtype
    now, then = (
        Variable(
            name=fresh(f"{steps[0].target.variable}_{word}", taken),
            dtype=dtype,
            shape=(),
            scope="register",
            lanes=loop.width,
        )
        for word in ("ahead", "following")
    )
    following = {loop.variable: affine(loop.variable) + loop.step}
    values = [*(node.value for node in steps), substitute(steps[0].value, following)]

    def body(count: int) -> tuple[Node, ...]:
        """All steps, with the first `count` of what comes next made ahead."""
        made: list[Node] = []
        for number, node in enumerate(steps):
            scanned = replace(node, value=Read(now.name, (), dtype))
            if number < count:
                made += (
                    Assign(target=Place(then.name, ()), value=values[number + 1]),
                    scanned,
                    Assign(target=Place(now.name, ()), value=Read(then.name, (), dtype)),
                )
            else:
                made.append(scanned)
        return tuple(made)

    last = loop.upper - loop.step
    first = Assign(target=Place(now.name, ()), value=steps[0].value)
    loops = (
        replace(loop, upper=loop.lower + loop.width, step=loop.width, body=(first,)),
        replace(loop, upper=last, body=body(len(steps))),
        replace(loop, lower=last, body=body(len(steps) - 1)),
    )
    inside = Allocate(variable=now, body=(Allocate(variable=then, body=loops),))
    span = loop.upper - loop.lower
    if span.is_constant:
        return inside
    return If(
        condition=Apply("lt", (IndexValue(loop.lower, i64), IndexValue(loop.upper, i64)), boolean), then=(inside,)
    )

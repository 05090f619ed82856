"""Sums whose ranges end elsewhere in each lane: lags of a correlation, whole convolutions, Toeplitz products from one row.

    vector(4) for (l = 0; l < 100; l++) for (n = 0; n < 10000 - l; n++) r[l] += y[n] * y[n + l];

All lanes of a register tile have most of such a range in common. That part needs no conditions, and there several vectors share the loads of y[n]; the few iterations before and behind it that some
lanes have are loops of their own, with a condition per lane. The sum is in a register across all of them.

Source: Griebl, Feautrier and Lengauer, "Index set splitting" (IJPP 2000).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Node, Place, Variable
from polyml.codegen.passes.vectors.boundaries import extreme
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import subscript_variables
from polyml.dtypes import DType
from polyml.expressions import Read, reads_of
from polyml.new_names import fresh
from polyml.sets.affine import Affine

__all__ = ["has_long_sums", "held"]

_LONG = 2
"""Ranges of so many times the lanes that share them are worth loops of their own for what only some lanes have."""


def has_long_sums(loop: For, ranges: Ranges, lanes: int) -> bool:
    """Whether the loop makes sums, one for each lane, over ranges that begin or end elsewhere from lane to lane, and are long beside so many lanes where their length is known; and nothing else but what begins or ends them."""
    body, own = loop.body, set[str]()
    while len(body) == 1 and isinstance(body[0], Allocate):
        own.add(body[0].variable.name)
        body = body[0].body
    if not all(isinstance(node, For) or (isinstance(node, Assign) and node.reduction is None) for node in body):
        return False
    nests = [_nest(node) for node in body if isinstance(node, For)]
    if not nests or not all(_is_sum(step, loops, loop.variable, own) for loops, step in nests):
        return False
    ragged = [inner for loops, _ in nests for inner in loops if _depends(inner, loop.variable)]
    return bool(ragged) and all(_is_long(inner, loop, ranges, lanes) for inner in ragged)


def held(loop: For, inside: Ranges, variables: Mapping[str, Variable], taken: set[str]) -> For:
    """The loop with each sum that goes on from what its element has in a register until it is made.

    Args:
        inside: what is known in the loop that these are iterations of. variables: arrays by name. taken: names in use; the new ones are added.

    Rewrite:
        for (l ..) for (n ..) r[l] += f;
        -> for (l ..) { register x; x = r[l]; for (n ..) x += f; r[l] = x; }
    """
    begun = {node.target for node in loop.body if isinstance(node, Assign)}

    def visit(node: Node) -> Node:
        if not isinstance(node, For):
            return node
        loops, step = _nest(node)
        assert step is not None, "internal: the loop has a sum"
        element = variables.get(step.target.variable)
        if step.target in begun or element is None or not _exists(step.target, element, inside):
            return node
        return _in_register(loops, step, element.dtype, taken)

    return replace(loop, body=tuple(map(visit, loop.body)))


def _in_register(loops: list[For], step: Assign, dtype: DType, taken: set[str]) -> Allocate:
    name = step.target.variable
    register = Variable(name=fresh(f"{name}_sum", taken), dtype=dtype, shape=(), scope="register")
    place = Place(register.name, ())
    total: Node = replace(step, target=place)
    for loop in reversed(loops):
        total = replace(loop, body=(total,))
    load = Assign(target=place, value=Read(name, step.target.subscripts, dtype))
    store = Assign(target=step.target, value=Read(register.name, (), dtype))
    return Allocate(variable=register, body=(load, total, store))


def _nest(outer: For) -> tuple[list[For], Assign | None]:
    """The sequential loops from the outer one on and the one assignment in them; None where there is anything else."""
    loops: list[For] = []
    body: tuple[Node, ...] = (outer,)
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "sequential":
        loops.append(body[0])
        body = body[0].body
    step = body[0] if len(body) == 1 else None
    return loops, step if isinstance(step, Assign) else None


def _is_sum(step: Assign | None, loops: list[For], lanes: str, own: set[str]) -> bool:
    """Whether it adds to an element of each lane's own, the same in all iterations, which it does not read otherwise. own: arrays that each lane has for itself."""
    if step is None or step.reduction is None or step.scan is not None or step.atomic or step.across:
        return False
    if step.value.dtype.is_complex or step.target.variable in {read.tensor for read in reads_of(step.value)}:
        return False
    used = subscript_variables(step.target.subscripts)
    return (lanes in used or step.target.variable in own) and not used & {loop.variable for loop in loops}


def _depends(inner: For, variable: str) -> bool:
    return variable in inner.lower.variables() | inner.upper.variables()


def _is_long(inner: For, loop: For, ranges: Ranges, lanes: int) -> bool:
    if inner.step != 1:
        return False
    extent = (loop.lower, loop.upper - 1)
    hull = extreme(inner.upper, loop.variable, extent, 1) - extreme(inner.lower, loop.variable, extent, -1)
    most = ranges.highest(hull)
    return most is None or most >= _LONG * lanes


def _exists(target: Place, element: Variable, ranges: Ranges) -> bool:
    """Whether each iteration's element is one of the array's, and no other's, so that storing what was there before is harmless where nothing is added."""
    variables = [s.variables() for s in target.subscripts if isinstance(s, Affine) and not s.is_constant]
    if any(len(names) > 1 for names in variables) or len(set().union(*variables)) < len(variables):
        return False
    return all(_limits(target, element, ranges))


def _limits(target: Place, element: Variable, ranges: Ranges) -> Iterator[bool]:
    for subscript, extent in zip(target.subscripts, element.shape, strict=True):
        if not isinstance(subscript, Affine):
            yield False
            return
        for margin in (subscript, extent - subscript - 1):
            least = ranges.lowest(margin)
            yield least is not None and least >= 0

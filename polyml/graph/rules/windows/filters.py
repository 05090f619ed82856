"""Sums over windows, lanes along the filters: `y[o, p, q] = sum[c, r, s](x[c, p + r - 1, q + s - 1] * w[o, c, r, s])` becomes

    x_padded[c, h, v] = x[c, h - 1, v - 1], zero outside
    y_last[p, q, o] = sum[c, r, s](x_padded[c, p + r, q + s] * w[o, c, r, s])
    y[o, p, q] = y_last[p, q, o]

Elements of windows are then broadcast from where they lie, whatever the stride or the dilation, and weights come in vectors from packed panels (schedule/blocking/plan.py). With lanes along q
short rows waste parts of vectors, strided ones need single elements, and padding makes them ragged. The result goes back in blocks that are transposed in registers, row by row
(schedule/strategy/contractions/blocked.py). Where lanes run along the filters anyway, padding alone becomes a tensor. Where the other factor is constant the same serves plain sums over few points,
such as 1x1 convolutions over 7 x 7: 49 points are four vectors that are three and a bit. Single elements with gaps between them (1x1 with stride 2) become a tensor without gaps first.

Symbolic sizes count as large here. Where that is wrong in a call, few filters or a short sum, its version without panels has lanes along the points again (codegen/passes/large.py).

Source: Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures" (SC 2018), on broadcasting the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from math import ceil, prod

from polyml.expressions import Apply, Read, is_number, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.edit import with_ops
from polyml.graph.frozen import made_of_constants
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import holds, hull, hull_extents
from polyml.graph.rules.windows.guarded import guarded, with_zeros
from polyml.graph.rules.windows.parts import Window, inside, padded_copy, padded_shape, reach
from polyml.graph.rules.windows.rows import MASK_BYTES, copied_rows, rows_in_phases
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box

__all__ = ["lanes_along_filters"]

DEPTH = 16
"""Terms of a sum, at least."""

LEAST_WORK = 1 << 16
"""Products below which it does not matter."""

LEAST_GUARDED = 1 << 20
"""The same where sums are compiled twice (rules/windows/guarded.py)."""

SHARED = 8
"""Rows of a register tile that share a vector which they load."""

COPIED = 0.25
"""Cycles for an element that is packed as it lies, a vector at a time."""

GAP, FEW_TERMS = 2, 29
"""Lanes along rows with gaps of up to so many elements load contiguous vectors and shuffle them; with larger gaps, and where sums have more terms, they are along the filters anyway, and results are
scattered. Terms count as often as vectors of a row hold more than the row."""

SHORT = 2
"""Vectors of a row in which edges are so much of it that padding is better copied than asked for."""

TAPS = 16
"""Places of a window from which on padding is better copied, too: each of them has edges of its own, and rows whose edges differ share no register tile."""

FEW_FILTERS = 2
"""Filters up to which the same holds for any sum over channels: more of them are a register tile by themselves, where rows are some vectors long."""

LEAST_RAGGED = 1 << 12
"""Products below which a copy is not worth its loops."""

NARROW, SHORT_SUMS = 5, 64
"""Rows of the result of so few elements, fewer than a vector has, are no blocks to be transposed while they are in L1. Where sums have so many terms for each lane at most, the result is moved as a whole, neighbouring indices as one, a region later."""

PLACED = 1.0
"""Cycles for an element that changes its place, through registers: of the result, of packed weights, of the padded tensor."""


def lanes_along_filters(
    graph: Graph, *, vector_bytes: int, l1_bytes: int = 0, l2_bytes: int = 0, constants: Set[str] = frozenset()
) -> Graph:
    """The graph with such sums as above where that costs less; sums in loops stay as they are.

    Args:
        constants: names of inputs that never change, whose panels are packed once.
    """
    tensors = tensors_of(graph)
    constants = constants | made_of_constants(graph, constants, tensors).keys()
    made: list[Op] = []
    for op in graph.ops:
        window = _window(op, graph, tensors, constants) if isinstance(op, Equation) else None
        if window is None or not isinstance(op, Equation):
            made.append(op)
            continue
        lanes = max(1, vector_bytes // op.result.dtype.itemsize)
        constant = window.other.tensor in constants and not window.symbolic
        if _is_sampled(window) and prod(window.numbers[i] for i in window.filters) >= lanes:
            read, sampling = _sampled(op, window, tensors)
            made.append(sampling)
            op = replace(op, body=Apply("mul", (read, window.other), op.body.dtype))
            window = replace(window, read=read)
        allowed = with_zeros(op, tensors) if window.guarded else op
        turned = bool(window.filters) and op.target[-1] != affine(window.filters[-1])
        plain = _is_plain(window.read) and not constant
        changed: list[Op] | None = None
        pays = (
            bool(window.filters)
            and not plain
            and any(
                _pays(op, window, extents, lanes, constant=constant, turned=turned)
                for extents in (window.numbers, window.likely)
            )
        )
        if op.base is not None:
            changed = _changed(op, window, graph, tensors, turned=turned and pays, lanes=lanes)
        elif not window.filters:
            changed = copied_rows(allowed, window, graph, tensors, lanes=lanes, l1_bytes=l1_bytes, l2_bytes=l2_bytes)
            if changed is None and window.padded and _is_shifted(op, window) and _copy_pays(op, window, lanes):
                changed = _changed(allowed, window, graph, tensors)
        elif pays:
            changed = _changed(allowed, window, graph, tensors, turned=turned, lanes=lanes)
        elif _is_gathered(op, window, lanes):
            changed = rows_in_phases(allowed, window, graph, tensors, lanes=lanes, l2_bytes=l2_bytes)
        elif window.padded and _is_ragged(op, window, lanes):
            changed = _changed(allowed, window, graph, tensors)
        if changed is not None and window.guarded:
            changed += guarded(op, allowed.result, window.other, graph, tensors)
        made += changed or [op]
    return with_ops(graph, made)


def _window(equation: Equation, graph: Graph, tensors: dict[str, Tensor], constants: Set[str]) -> Window | None:
    whole = equation.is_plain and equation.base is None and equation.instances is None
    body = equation.body
    if equation.reduce != "sum" or not equation.reduced or not isinstance(body, Apply) or body.op != "mul":
        return None
    if not whole and not _is_part(equation):
        return None
    if not body.dtype.is_float or len(body.args) != 2:
        return None
    for window, other in (body.args, body.args[::-1]):
        if not isinstance(window, Read) or not isinstance(other, Read):
            continue
        if not _is_plain(other) and (_is_plain(window) or not _is_one_to_one(other)):
            continue
        if _is_plain(window) and (other.tensor not in constants or window.tensor in constants):
            continue
        if _is_linear(window):
            return _roles(equation, window, other, graph, tensors)
    return None


def _is_part(equation: Equation) -> bool:
    """Whether the result is a part of a tensor, its indices in the order of the dimensions, and the others are numbers: one of the phases that windows move by (windows/phase_by_phase.py)."""
    if equation.accumulate or equation.instances is not None or equation.only_if is not None:
        return False
    places = [place for place in equation.target if isinstance(place, Affine)]
    moved = tuple(place - place.constant for place in places if not place.is_constant)
    if len(places) < len(equation.target) or moved != tuple(map(affine, equation.left)):
        return False
    found = hull(equation)
    return found is not None and equation.domain.is_equal(box(equation.result.name, equation.indices, found))


def _is_plain(read: Read) -> bool:
    """Whether every subscript is an index of its own, or a number."""
    names = [s.name if isinstance(s, Affine) else None for s in read.subscripts if not is_number(s)]
    return None not in names and len(set(names)) == len(names)


def _is_one_to_one(read: Read) -> bool:
    """Whether all subscripts are linear, and no index is in two of them: a window's filter that runs backwards, or its phases. Each must go as far as the dimension at most."""
    names = [name for s in read.subscripts if isinstance(s, Affine) for name in s.variables()]
    return _is_linear(read) and len(set(names)) == len(names)


def _is_linear(read: Read) -> bool:
    """Whether each index moves the read by the same distance from each of its values to the next: what windows reach is known by that. Quotients do not."""
    return all(isinstance(s, Affine) and None not in map(s.stride, s.variables()) for s in read.subscripts)


def _roles(equation: Equation, read: Read, other: Read, graph: Graph, tensors: dict[str, Tensor]) -> Window | None:
    left, shape = equation.left, tensors[read.tensor].shape
    used = variables_in(read.subscripts)
    weights = variables_in(other.subscripts)
    filters = tuple(index for index in left if index in weights and index not in used)
    points = tuple(index for index in left if index not in filters)
    if not used <= set(equation.indices) or not set(equation.reduced) <= used & weights or not points:
        return None
    extents = _extents(equation, other, tensors)
    if extents is None:
        return None
    # Where a place is beside the tensor must be known.
    places = [s for s in read.subscripts if isinstance(s, Affine) and s.name is None]
    if not all(holds(low, graph) or holds(-low, graph) for low, _ in (reach(place, extents) for place in places)):
        return None
    # Nor is a row beside the tensor, of a result that is longer, any of its windows.
    rows = [(s, n) for s, n in zip(read.subscripts, shape, strict=True) if isinstance(s, Affine) and s.name is not None]
    if not all(holds(n - extents[s.name], graph) for s, n in rows if s.name is not None):
        return None
    known, sizes = graph.context, graph.sizes
    domain = equation.domain.intersect_params(known)
    whole = box(equation.result.name, equation.indices, extents, sizes).intersect_params(known)
    padded = not domain.is_equal(whole)
    within = inside(equation.result.name, equation.indices, read, shape, sizes) if padded else whole
    if padded and not domain.is_equal(whole.intersect(within)):
        return None
    # Nor how far windows without places reach beyond it.
    if padded and not all(holds(extent - 1, graph) for extent in extents.values()):
        return None
    found = Window(read, other, extents, filters, points, padded, padded and not equation.padded, graph.examples)
    if found.guarded and prod(found.numbers[index] for index in equation.indices) < LEAST_GUARDED:
        return None
    return found


def _extents(equation: Equation, other: Read, tensors: dict[str, Tensor]) -> dict[str, Affine] | None:
    """How far each index runs, from 0 on: in numbers, else along the dimensions of the result and of the other factor; None where that is not known."""
    known = hull_extents(equation) if equation.base is None else hull(equation)
    if known is not None:
        return {index: affine(extent) for index, extent in known.items()}
    found = dict(zip(equation.indices, equation.result.shape, strict=False))
    for subscript, extent in zip(other.subscripts, tensors[other.tensor].shape, strict=True):
        if isinstance(subscript, Affine) and subscript.name in equation.reduced:
            found[subscript.name] = extent
    for position, index in enumerate(equation.indices):
        high = equation.domain.dim_max_val(position)
        if index not in found and high.is_int():
            found[index] = affine(high.to_python() + 1)
    return found if found.keys() >= set(equation.indices) else None


def _is_sampled(window: Window) -> bool:
    """Whether windows are single elements with gaps between them: then neighbours are worth having side by side."""
    places = [s for s in window.read.subscripts if isinstance(s, Affine)]
    used = [name for place in places for name in place.variables()]
    single = all(len(place.variables()) == 1 for place in places) and len(set(used)) == len(used)
    return single and not window.padded and not _is_plain(window.read)


def _sampled(equation: Equation, window: Window, tensors: dict[str, Tensor]) -> tuple[Read, Equation]:
    """The read from a tensor of the elements that windows have, and the equation that makes it."""
    source = tensors[window.read.tensor]
    places = [s for s in window.read.subscripts if isinstance(s, Affine)]
    names = [name for place in places for name in place.variables()]
    shape = tuple(window.extents[name] for name in names)
    name = fresh_name(f"{source.name}_sampled", tensors)
    tensor = tensors[name] = Tensor(name, source.dtype, shape, name)
    inside = tuple(
        place.substitute({v: affine(f"i{d}")}) for d, (v, place) in enumerate(zip(names, places, strict=True))
    )
    made = replace(fill(tensor, Read(source.name, inside, source.dtype), equation.span), apart=True)
    return Read(name, tuple(map(affine, names)), source.dtype), made


def _arranged(equation: Equation, window: Window, tensors: dict[str, Tensor]) -> tuple[Read, Equation]:
    """The read of filters from a tensor that has them in order, those that are neighbours of the result last, and the equation that makes it."""
    source = tensors[window.other.tensor]
    used = variables_in(window.other.subscripts)
    order = tuple(index for index in (*equation.reduced, *equation.indices) if index in used)
    order = tuple(dict.fromkeys(order))
    name = fresh_name(f"{source.name}_in_order", tensors)
    tensor = tensors[name] = Tensor(name, source.dtype, tuple(window.extents[index] for index in order), name)
    at = {index: affine(f"i{d}") for d, index in enumerate(order)}
    subscripts = tuple(s.substitute(at) for s in window.other.subscripts if isinstance(s, Affine))
    made = replace(fill(tensor, Read(source.name, subscripts, source.dtype), equation.span), apart=True)
    return Read(name, tuple(map(affine, order)), source.dtype), made


def _pays(
    equation: Equation, window: Window, extents: Mapping[str, int], lanes: int, *, constant: bool, turned: bool
) -> bool:
    """Cycles of lanes along the filters beside those of lanes where they are: two vectors of products a cycle, loads of windows shared by the rows of a tile; and what is moved.

    A vector of elements a few apart is so many loads and shuffles between them.
    """
    padding = padded_shape(window, {i: affine(extent) for i, extent in extents.items()}) if window.padded else ()
    depth = prod(extents[i] for i in equation.reduced)
    filters, points = (prod(extents[i] for i in part) for part in (window.filters, window.points))
    if depth * filters * points < LEAST_WORK:
        return False
    if depth < DEPTH:
        return False
    moved = prod((high - low).constant for low, high in padding)
    last = extents[window.filters[-1]] if _is_plain(window.other) else filters  # neighbours once they are arranged
    products = points * depth * (filters // last * ceil(last / lanes)) * 0.5
    if not turned:
        return window.padded and moved * PLACED < products
    row = window.points[-1]
    step = sum(s.stride(row) or 0 for s in window.read.subscripts[-1:] if isinstance(s, Affine))
    load = 1.0 if step == 1 and not window.padded else float(lanes)
    waste = ceil(extents[row] / lanes) * lanes / extents[row]
    if depth * waste <= FEW_TERMS and 0 < step <= GAP and extents[row] > SHORT * lanes:
        load = min(2.0 * step - 1, lanes)
    vectors = points // extents[row] * ceil(extents[row] / lanes) * depth * filters
    here = vectors * (0.5 + load / 2 / SHARED)
    if _is_plain(window.read):
        # Panels hold rows that are neighbours in memory as one (scop/joined_indices.py), those of an image, and are copies.
        joined = prod(extents[i] for i in _side_by_side(window))
        here = points // joined * ceil(joined / lanes) * depth * filters * 0.5 + points * depth * COPIED
    moved += points * filters + (0 if constant else depth * filters)
    return products + moved * PLACED < here


def _is_gathered(equation: Equation, window: Window, lanes: int) -> bool:
    """Whether sums are so short that lanes stay along long rows with gaps, which a copy in phases has side by side. Else each tap shuffles what it loads, or lanes run along the filters and results are scattered
    (of f64, four lanes, 0.9 of the time)."""
    if window.symbolic or lanes < SHARED or lanes * equation.body.dtype.itemsize == MASK_BYTES:
        return False
    extents, row = window.numbers, window.points[-1]
    filters, depth = (prod(extents[i] for i in part) for part in (window.filters, equation.reduced))
    if filters < SHARED or depth * filters * prod(extents[i] for i in window.points) < LEAST_WORK:
        return False
    step = sum(s.stride(row) or 0 for s in window.read.subscripts[-1:] if isinstance(s, Affine))
    waste = ceil(extents[row] / lanes) * lanes / extents[row]
    return depth * waste <= FEW_TERMS and 1 < step <= GAP and extents[row] > SHORT * lanes


def _side_by_side(window: Window) -> list[str]:
    """The last of the points that are the read's last dimensions, in their order."""
    last = [s.name for s in window.read.subscripts if isinstance(s, Affine)]
    found: list[str] = []
    for index, name in zip(reversed(window.points), reversed(last), strict=False):
        if index != name:
            break
        found.append(index)
    return found


def _is_ragged(equation: Equation, window: Window, lanes: int) -> bool:
    """Whether the edges of windows with padding, which stay where they are, cost more than a copy with the padding around it."""
    extents = window.numbers
    places = [s for s in window.read.subscripts if isinstance(s, Affine) and s.name is None]
    moved = variables_in(places) & set(equation.reduced)
    taps, depth = prod(extents[i] for i in moved), prod(extents[i] for i in equation.reduced)
    products = depth * prod(extents[i] for i in (*window.filters, *window.points))
    if products < LEAST_RAGGED:
        return False
    row = window.points[-1]
    step = sum(s.stride(row) or 0 for s in window.read.subscripts[-1:] if isinstance(s, Affine))
    if taps >= TAPS or step != 1:
        return taps >= TAPS
    few = prod(extents[i] for i in window.filters) <= FEW_FILTERS and depth > taps
    if few or extents[row] <= SHORT * lanes:
        return True
    if window.symbolic or lanes * equation.body.dtype.itemsize == MASK_BYTES:
        return False
    # Each row has two vectors with edges, whose sums take twice as long with masks that are made for them.
    padding = padded_shape(window, {i: affine(extent) for i, extent in extents.items()})
    edges = 2 * lanes / extents[row] * products / lanes * 0.5
    return prod((high - low).constant for low, high in padding) * PLACED < edges


def _is_shifted(equation: Equation, window: Window) -> bool:
    """Whether every window is one element, moved by indices of the result: a correlation `y[d, n] = sum[c](a[c, n] * b[c, n + d - 4])`."""
    places = [s for s in window.read.subscripts if isinstance(s, Affine) and s.name is None]
    return not any(place.variables() & set(equation.reduced) for place in places)


def _copy_pays(equation: Equation, window: Window, lanes: int) -> bool:
    """Cycles of a copy with the padding around it beside those of products, each of which loads what a register tile without edges shares."""
    padding = padded_shape(window, {i: affine(extent) for i, extent in window.numbers.items()})
    products = prod(window.numbers[i] for i in equation.indices) / lanes
    return prod((high - low).constant for low, high in padding) * PLACED < products * 0.5


def _is_narrow(equation: Equation, window: Window, lanes: int) -> bool:
    """Whether a filter's gradient, say, is better moved when all of it is there."""
    row, depth = window.numbers[window.points[-1]], prod(window.numbers[index] for index in equation.reduced)
    return row <= NARROW and row < lanes and (window.symbolic or depth <= SHORT_SUMS * lanes)


def _changed(
    equation: Equation,
    window: Window,
    graph: Graph,
    tensors: dict[str, Tensor],
    *,
    turned: bool = False,
    lanes: int = 1,
) -> list[Op]:
    made: list[Op] = []
    read, other = window.read, window.other
    if window.padded:
        read, padding = padded_copy(equation, window, graph, tensors)
        made.append(replace(padding, apart=True))
    if not _is_plain(other) or (equation.base is not None and any(map(is_number, other.subscripts))):
        other, arranging = _arranged(equation, window, tensors)
        made.append(arranging)
    body = Apply("mul", (read, other), equation.body.dtype)
    if not turned:
        domain = box(equation.result.name, equation.indices, window.extents, graph.sizes)
        return [*made, replace(equation, body=body, domain=domain, padded=False)]
    order = (*window.points, *window.filters)
    name = fresh_name(f"{equation.result.name}_last", tensors)
    shape = tuple(window.extents[index] for index in order)
    last = tensors[name] = Tensor(name, equation.result.dtype, shape, equation.result.label)
    indices = (*order, *equation.reduced)
    domain, target = box(name, indices, window.extents, graph.sizes), tuple(map(affine, order))
    narrow = not window.symbolic and _is_narrow(equation, window, lanes)
    made.append(
        replace(
            equation,
            result=last,
            indices=indices,
            domain=domain,
            target=target,
            body=body,
            base=None,
            padded=False,
            apart=narrow,
        )
    )
    left = equation.left
    names = {index: f"i{k}" for k, index in enumerate(left)}
    at = {index: affine(names[index]) for index in left}
    whole = {names[index]: window.extents[index] for index in left}
    made.append(
        replace(
            equation,
            indices=tuple(whole),
            domain=box(equation.result.name, tuple(whole), whole, graph.sizes),
            target=tuple(place.substitute(at) for place in equation.target if isinstance(place, Affine)),
            body=Read(name, tuple(at[index] for index in order), last.dtype),
            reduce=None,
            reduced=(),
            padded=False,
            apart=False,
        )
    )
    return made

"""The iterations of a loop over blocks or threads that one of them owns, as C loops."""

from __future__ import annotations

import functools
from dataclasses import replace

from polyml.codegen.cuda.text.expression import Writer
from polyml.codegen.cuda.text.helpers import helper_name
from polyml.codegen.loops import For
from polyml.sets.affine import Affine, Extremum, affine

__all__ = ["INDENT", "owned_loop"]

INDENT = "  "


def owned_loop(w: Writer, node: For, indent: str) -> tuple[list[str], str, list[str]]:
    """The iterations of a block or thread loop that this block or thread owns (see For): the lines before, the indent of the body, and the lines after.

    Values are walked in units of the factor (blocks) or of 1 (threads); where the loop itself takes larger steps, a test picks its values.
    """
    name, thread = w.names[node.variable], node.kind == "thread"
    unit = 1 if thread else node.factor
    long = "(long long)" if w.wide else ""
    axis = f"{long}{node.kind}Idx.{node.axis}"
    count = str(node.factor) if thread else f"{long}gridDim.{node.axis}"
    assert node.step % unit == 0, "internal: a block loop steps through parts of tiles"
    node, later = _from_multiple(node, w, unit * node.factor if thread else 0)
    tests = [f"{name} >= {w.index(operand)}" for operand in later]
    lower = w.index(node.lower)
    aligned = thread and _is_multiple(node.lower, w, node.factor)
    bounds = _bounds_above(w, node, aligned)
    upper = " && ".join(f"{name} < {bound}" for bound in bounds)
    if _is_multiple(node.lower, w, unit * node.factor if thread else 0):
        start = axis if node.lower == Affine() else f"{lower} + {axis}"
        start = start if unit == 1 or node.lower != Affine() else f"{unit} * {axis}"
    else:
        w.use("offset", None)
        first = f"{lower}" if unit == 1 else f"({lower}) / {unit}"
        scale = "" if unit == 1 else f"{unit} * "
        start = f"{lower} + {scale}{helper_name('offset', None)}({axis}, {first}, {count})"
    stride = count if unit == 1 else f"{unit} * {count}"
    kind = w.index_type
    span = w.ranges.highest(node.upper - node.lower)
    if thread and node.step == 1 and span is not None and span <= node.factor:
        inside = indent + INDENT
        condition = " && ".join([*tests, *([upper] if upper else [])])
        if not condition:
            return [f"{indent}{{", f"{inside}const {kind} {name} = {_converted(start, w)};"], inside, [f"{indent}}}"]
        head = [f"{indent}{{", f"{inside}const {kind} {name} = {_converted(start, w)};", f"{inside}if ({condition}) {{"]
        return head, inside + INDENT, [f"{inside}}}", f"{indent}}}"]
    if thread and len(bounds) > 1:  # one bound, so that the compiler unrolls the loop
        upper = f"{name} < {functools.reduce(lambda one, other: f'({one} < {other} ? {one} : {other})', bounds)}"
    head = [f"{indent}for ({kind} {name} = {_converted(start, w)}; {upper or 'true'}; {name} += {stride}) {{"]
    tail = [f"{indent}}}"]
    if node.step != unit:
        tests.append(f"({name} - ({lower})) % {node.step} == 0")
    if tests:
        inside = indent + INDENT
        head.append(f"{inside}if ({' && '.join(tests)}) {{")
        return head, inside + INDENT, [f"{inside}}}", *tail]
    return head, indent + INDENT, tail


def _from_multiple(node: For, w: Writer, factor: int) -> tuple[For, tuple[Affine, ...]]:
    """A loop from the largest of several values on, one of which is a multiple of the factor, as the loop from that one on, and the values that it skips to: so no thread has to
    find out where its first iteration is."""
    if factor and node.step == 1 and node.lower.is_constant:
        base = node.lower.constant // factor * factor
        return (node, ()) if base == node.lower.constant else (replace(node, lower=affine(base)), (node.lower,))
    atom = node.lower.terms[0][0] if len(node.lower.terms) == 1 and node.lower.constant == 0 else None
    if not isinstance(atom, Extremum) or atom.kind != "max" or node.lower.terms[0][1] != 1 or node.step != 1:
        return node, ()
    if factor == 0:
        return node, ()
    able = sorted((o for o in atom.operands if _is_multiple(o, w, factor)), key=lambda o: not o.terms)
    first = able[0] if able else None
    if first is None or (first.is_constant and (w.ranges.highest(node.upper - first) or factor + 1) > factor):
        return node, ()  # from a constant only where each thread has one iteration in any case
    return replace(node, lower=first), tuple(operand for operand in atom.operands if operand != first)


def _bounds_above(w: Writer, node: For, aligned: bool) -> list[str]:
    """What the variable has to be below: the operands of a minimum, without those that are certain.

    Args:
        aligned: threads start at the lower bound itself, and none goes a whole block's width beyond.
    """
    operands: tuple[Affine, ...] = (node.upper,)
    atom = node.upper.terms[0][0] if len(node.upper.terms) == 1 and node.upper.constant == 0 else None
    if isinstance(atom, Extremum) and atom.kind == "min" and node.upper.terms[0][1] == 1:
        operands = atom.operands
    one_step = (
        aligned and node.step == 1 and (w.ranges.highest(node.upper - node.lower) or node.factor + 1) <= node.factor
    )
    bounds = []
    for operand in operands:
        room = w.ranges.lowest(operand - node.lower)
        if not (one_step and room is not None and room >= node.factor):
            bounds.append(w.index(operand))
    return bounds


def _converted(start: str, w: Writer) -> str:
    return start if w.wide else f"(int)({start})"


def _is_multiple(value: Affine, w: Writer, factor: int) -> bool:
    """Whether the value is a multiple of the factor (0: whether it is zero), by the steps of the loops around."""
    if value == Affine():
        return True
    if factor == 0 or value.constant % factor:
        return False
    loops = {loop.variable: loop for loop in w.ranges.loops}
    for atom, coefficient in value.terms:
        if coefficient % factor == 0:
            continue
        loop = loops.get(atom) if isinstance(atom, str) else None
        if loop is None or loop.step * coefficient % factor or not _is_multiple(loop.lower * coefficient, w, factor):
            return False
    return True

"""Code of one thread: assignments, loops, conditions, scratch memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import assert_never

from polyml.codegen.cuda.arithmetic import ARITHMETIC
from polyml.codegen.cuda.expression import Writer
from polyml.codegen.cuda.helpers import helper_name
from polyml.codegen.cuda.types import c_type
from polyml.codegen.cuda.vectors import Moved, Run, runs, vector_type
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch, UpdateArgument, Variable
from polyml.dtypes import DType
from polyml.expressions import Read
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, affine

__all__ = ["INDENT", "ThreadCode", "atomic_update", "combined", "owned_loop"]

INDENT = "  "


@dataclass(frozen=True, slots=True)
class ThreadCode:
    """Writes nodes as the code of a single thread. writer: is told about scratch variables."""

    writer: Writer

    def lines(self, nodes: tuple[Node, ...], indent: str) -> list[str]:
        made: list[str] = []
        for node in runs(nodes, self.writer):
            match node:
                case Run():
                    made += self.run(node, indent)
                case Moved():
                    made.append(indent + self.moved(node))
                case _:
                    made += self.node(node, indent)
        return made

    def run(self, run: Run, indent: str) -> list[str]:
        """Values side by side, stored at once."""
        w, count, made = self.writer, len(run.assigns), list[str]()
        known = dict(w.loaded)
        for number, load in enumerate(run.loads):
            read = load.reads[0]
            kind = vector_type(read.dtype, count)
            name = f"{w.names[read.tensor]}_v{number}"
            made.append(f"{indent}  const {kind} {name} = *(const {kind}*)&{w.element(read.tensor, read.subscripts)};")
            w.loaded.update({r: f"{name}.{part}" for r, part in zip(load.reads, "xyzw", strict=False)})
        target = run.assigns[0].target
        kind = vector_type(w.variables[target.variable].dtype, count)
        values = ", ".join(_bare(w.value(node.value)) for node in run.assigns)
        made.append(f"{indent}  *({kind}*)&{w.element(target.variable, target.subscripts)} = make_{kind}({values});")
        w.loaded = known
        return [f"{indent}{{", *made, f"{indent}}}"] if run.loads else [made[0].replace(f"{indent}  ", indent, 1)]

    def moved(self, moved: Moved) -> str:
        """Elements copied as they are."""
        target, value = moved.target.target, moved.target.value
        assert isinstance(value, Read), "internal: a copy of something computed"
        to = self.writer.element(target.variable, target.subscripts)
        if moved.target.asynchronous:
            return (
                f"__pipeline_memcpy_async(&{to}, &{self.writer.element(value.tensor, value.subscripts)}, {moved.size});"
            )
        kind = "uint4" if moved.size == 16 else "uint2"
        return f"*({kind}*)&{to} = *(const {kind}*)&{self.writer.element(value.tensor, value.subscripts)};"

    def node(self, node: Node, indent: str) -> list[str]:
        w = self.writer
        match node:
            case Assign():
                return [indent + self.assignment(node)]
            case UpdateArgument():
                return self.update(node, indent)
            case For():
                return self.loop(node, indent)
            case If():
                lines = [f"{indent}if ({w.condition(node.condition)}) {{", *self.lines(node.then, indent + INDENT)]
                if node.otherwise:
                    lines += [f"{indent}}} else {{", *self.lines(node.otherwise, indent + INDENT)]
                return [*lines, f"{indent}}}"]
            case Allocate():
                again = node.variable.name in w.variables
                w.variables[node.variable.name] = node.variable
                if again:  # a scope of its own, for a name that is declared already
                    inside = indent + INDENT
                    lines = [f"{inside}{declaration(node.variable, w)};", *self.lines(node.body, inside)]
                    return [f"{indent}{{", *lines, f"{indent}}}"]
                return [f"{indent}{declaration(node.variable, w)};", *self.lines(node.body, indent)]
            case Block():
                return self.lines(node.body, indent)
            case Prefetch():
                return []
            case _:
                assert_never(node)

    def assignment(self, node: Assign) -> str:
        assert not node.across, "internal: threads are combined where all of them are"
        w = self.writer
        target = w.element(node.target.variable, node.target.subscripts)
        value = w.value(node.value)
        if node.asynchronous:
            return f"__pipeline_memcpy_async(&{target}, &{value}, {node.value.dtype.itemsize});"
        if node.reduction is None:
            return f"{target} = {_bare(value)};"
        dtype = w.variables[node.target.variable].dtype
        if node.atomic:
            return atomic_update(w, node.reduction, _bare(value), target, dtype)
        if node.reduction == "sum" and dtype.is_float:
            return f"{target} += {_bare(value)};"
        return f"{target} = {combined(w, node.reduction, value, target, dtype)};"

    def update(self, node: UpdateArgument, indent: str) -> list[str]:
        w = self.writer
        best = w.element(node.best.variable, node.best.subscripts)
        argument = w.element(node.argument.variable, node.argument.subscripts)
        dtype = w.variables[node.best.variable].dtype
        w.use(node.kind, dtype)
        inside = indent + INDENT
        return [
            f"{indent}{{",
            f"{inside}const {c_type(dtype)} candidate = {_bare(w.value(node.candidate))};",
            f"{inside}const long long its_index = {_bare(w.value(node.candidate_index))};",
            f"{inside}if ({helper_name(node.kind, dtype)}(candidate, its_index, {best}, {argument})) {{",
            f"{inside}{INDENT}{best} = candidate;",
            f"{inside}{INDENT}{argument} = its_index;",
            f"{inside}}}",
            f"{indent}}}",
        ]

    def loop(self, node: For, indent: str) -> list[str]:
        if node.mapped:
            head, inner, tail = owned_loop(self.writer, node, indent)
        else:
            w = self.writer
            name = w.names[node.variable]
            step = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
            upper = w.index(node.upper)
            head = [f"{indent}for ({w.index_type} {name} = {w.index(node.lower)}; {name} < {upper}; {step}) {{"]
            if node.kind == "unroll":
                head.insert(0, f"{indent}#pragma unroll {node.factor}")
            inner, tail = indent + INDENT, [f"{indent}}}"]
        outer = self.writer.ranges
        self.writer.ranges = outer.enter(node)
        body = self.lines(node.body, inner)
        self.writer.ranges = outer
        return [*head, *body, *tail]


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
    upper = _below(w, node, aligned)
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


def _below(w: Writer, node: For, aligned: bool) -> str:
    """The test that the variable is below the upper bound: one comparison per operand of a minimum, without those that are certain.

    Args:
        aligned: threads start at the lower bound itself, and none goes a whole block's width beyond.
    """
    name = w.names[node.variable]
    operands: tuple[Affine, ...] = (node.upper,)
    atom = node.upper.terms[0][0] if len(node.upper.terms) == 1 and node.upper.constant == 0 else None
    if isinstance(atom, Extremum) and atom.kind == "min" and node.upper.terms[0][1] == 1:
        operands = atom.operands
    one_step = (
        aligned and node.step == 1 and (w.ranges.highest(node.upper - node.lower) or node.factor + 1) <= node.factor
    )
    tests = []
    for operand in operands:
        room = w.ranges.lowest(operand - node.lower)
        if not (one_step and room is not None and room >= node.factor):
            tests.append(f"{name} < {w.index(operand)}")
    return " && ".join(tests)


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


def combined(w: Writer, reduction: str, value: str, target: str, dtype: DType) -> str:
    """combine(target, value), by the row of the reduction's op."""
    op = REDUCTIONS[reduction].combine
    assert op is not None, "internal: argmax and argmin are UpdateArgument"
    return ARITHMETIC[op]((value, target), dtype, w.use)


def atomic_update(w: Writer, reduction: str, value: str, target: str, dtype: DType) -> str:
    """combine(target, value) where others do so at the same time."""
    name = f"atomic_{reduction}"
    w.use(name, dtype)
    return f"{helper_name(name, dtype)}(&{target}, {value});"


def declaration(variable: Variable, w: Writer) -> str:
    """`float x[12]`: registers and scratch arrays of one thread."""
    name = w.names[variable.name]
    if variable.scope == "register" or not variable.shape:
        return f"{c_type(variable.dtype)} {name}"
    return f"{c_type(variable.dtype)} {name}[{elements(variable)}]"


def elements(variable: Variable) -> int:
    """How many elements the variable has; its extents are numbers."""
    assert all(extent.is_constant for extent in variable.shape), (
        "internal: scratch memory of a thread has a symbolic size"
    )
    return max(1, prod(extent.constant for extent in variable.shape))


def _bare(text: str) -> str:
    """Text without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]

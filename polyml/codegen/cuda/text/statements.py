"""Code of one thread: assignments, loops, conditions, scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from polyml.codegen.cuda.text.arithmetic import ARITHMETIC
from polyml.codegen.cuda.text.expression import Writer
from polyml.codegen.cuda.text.helpers import helper_name
from polyml.codegen.cuda.text.owned_loops import INDENT, owned_loop
from polyml.codegen.cuda.text.types import c_type
from polyml.codegen.cuda.text.vectors import Gathered, Loaded, Moved, Run, runs, vector_type
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch, UpdateArgument, Variable
from polyml.codegen.printer import without_parentheses
from polyml.dtypes import DType
from polyml.expressions import Read
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.sets.shapes import element_count, is_known

__all__ = ["ThreadCode", "atomic_update", "combined"]


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
                case Gathered():
                    made += self.gathered(node, indent)
                case Moved():
                    made.append(indent + self.moved(node))
                case _:
                    made += self.node(node, indent)
        return made

    def run(self, run: Run, indent: str) -> list[str]:
        """Values side by side, stored at once."""
        w, count, known = self.writer, len(run.assigns), dict(self.writer.loaded)
        made = self.loaded(run.loads, indent)
        target = run.assigns[0].target
        kind = vector_type(w.variables[target.variable].dtype, count)
        values = ", ".join(without_parentheses(w.value(node.value)) for node in run.assigns)
        made.append(f"{indent}  *({kind}*)&{w.element(target.variable, target.subscripts)} = make_{kind}({values});")
        w.loaded = known
        return [f"{indent}{{", *made, f"{indent}}}"] if run.loads else [made[0].replace(f"{indent}  ", indent, 1)]

    def gathered(self, run: Gathered, indent: str) -> list[str]:
        """Values of which parts are read side by side, one by one."""
        known = dict(self.writer.loaded)
        made = self.loaded(run.loads, indent)
        made += [f"{indent}  {self.assignment(node)}" for node in run.assigns]
        self.writer.loaded = known
        return [f"{indent}{{", *made, f"{indent}}}"]

    def loaded(self, loads: Sequence[Loaded], indent: str) -> list[str]:
        """Neighbouring elements as variables of a block of their own; the writer knows them from now on."""
        w, made = self.writer, list[str]()
        for number, load in enumerate(loads):
            read = load.reads[0]
            kind = vector_type(read.dtype, len(load.reads))
            name = f"{w.names[read.tensor]}_v{number}"
            made.append(f"{indent}  const {kind} {name} = *(const {kind}*)&{w.element(read.tensor, read.subscripts)};")
            w.loaded.update({r: f"{name}.{part}" for r, part in zip(load.reads, "xyzw", strict=False)})
        return made

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
            return f"{target} = {without_parentheses(value)};"
        dtype = w.variables[node.target.variable].dtype
        if node.atomic:
            return atomic_update(w, node.reduction, without_parentheses(value), target, dtype)
        if node.reduction == "sum" and dtype.is_float:
            return f"{target} += {without_parentheses(value)};"
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
            f"{inside}const {c_type(dtype)} candidate = {without_parentheses(w.value(node.candidate))};",
            f"{inside}const long long its_index = {without_parentheses(w.value(node.candidate_index))};",
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
    assert is_known(variable.shape), "internal: scratch memory of a thread has a symbolic size"
    return max(1, element_count(variable.shape))

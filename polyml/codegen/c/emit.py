"""Loops to C99 with OpenMP pragmas: for people to read and for other compilers.

    static void name(int64_t N, ..., const double A[restrict 60][80], ...)     one per Function: the sizes, then the arrays

Scratch memory is on the stack when it is small, else from malloc; a failed malloc aborts. Signed integers wrap in programs: compile with -fwrapv
where that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from polyml.codegen.c.expression import affine_text, expression_text
from polyml.codegen.c.helpers import c_type, helper_texts
from polyml.codegen.c.names import Names, words_of
from polyml.codegen.c.pipeline import LOCAL_NAMES, NEEDED, PIPELINE
from polyml.codegen.c.simd import simd_clauses
from polyml.codegen.loops import (
    Allocate,
    Assign,
    Block,
    For,
    Function,
    If,
    Node,
    Place,
    Prefetch,
    UpdateArgument,
    Variable,
)
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Apply, Expr, Read, Subscript, reads_of
from polyml.ops import REDUCTIONS
from polyml.sets.affine import Affine, affine

__all__ = ["PREAMBLE", "STACK_BYTES", "assemble", "function_text"]

STACK_BYTES = 16 * 1024
"""Larger scratch arrays are on the heap."""

_INDENT = "    "
PREAMBLE = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
"""
_PRAGMAS = """
#if defined(__GNUC__) && !defined(_OPENMP)
#pragma GCC diagnostic ignored "-Wunknown-pragmas" /* without -fopenmp: one thread */
#endif
"""


def assemble(definitions: list[str]) -> str:
    """One file of these definitions and what they need."""
    body = "\n\n".join(definitions)
    pragmas = _PRAGMAS if "#pragma omp" in body else ""
    texts = [*helper_texts(body), *([PIPELINE.strip()] if NEEDED in body else [])]
    helpers = "".join(f"\n{text}\n" for text in texts)
    strings = "#include <string.h>\n" if "memcpy(" in helpers else ""
    return f"{PREAMBLE}{strings}{pragmas}{helpers}\n{body}\n"


def function_text(function: Function, linkage: str = "static ") -> str:
    """One definition, of a function that went through `plain_loops`."""
    return linkage + _Emitter(function).text()


class _Emitter:
    def __init__(self, function: Function) -> None:
        self.function = function
        pipelined = any(isinstance(node, For) and node.kind == "pipelined" for node in walk_nodes(function.body))
        self.names = Names(function, taken=[function.name, *(LOCAL_NAMES if pipelined else ())])
        self.variables = {v.name: v for v in function.arguments}
        self.parallel = self.pipelined = False

    def text(self) -> str:
        f = self.function
        body = list(self.nodes(f.body, _INDENT))
        sizes = [f"int64_t {self.names.integer(size)}" for size in f.sizes]
        arguments = [self.parameter(v, written=v.name in f.written) for v in f.arguments]
        used = "\n".join([*body, *arguments])
        unused = [name for size in f.sizes if (name := self.names.integer(size)) not in words_of(used)]
        unused += [name for v in f.arguments if (name := self.names.array(v.name)) not in words_of("\n".join(body))]
        body = [f"{_INDENT}(void){name};" for name in unused] + body
        parameters = ", ".join([*sizes, *arguments]) or "void"
        return "\n".join([f"void {f.name}({parameters})", "{", *body, "}"])

    def parameter(self, variable: Variable, *, written: bool) -> str:
        kind = ("" if written else "const ") + c_type(variable.dtype)
        name = self.names.array(variable.name)
        if _is_flat(variable) or not variable.shape:
            return f"{kind} *restrict {name}"
        first, *others = map(self.extent, variable.shape)
        return f"{kind} {name}[restrict {first}]{''.join(f'[{extent}]' for extent in others)}"

    def extent(self, value: Affine) -> str:
        """An array of no elements has one in C."""
        return "1" if value.is_constant and value.constant < 1 else affine_text(value, self.names)

    # -- nodes ------------------------------------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[Node], indent: str) -> Iterator[str]:
        for node in nodes:
            match node:
                case Assign():
                    yield f"{indent}{self.assignment(node)};"
                case UpdateArgument():
                    yield from self.update_argument(node, indent)
                case Prefetch():
                    pass  # of no meaning to the program, and other compilers decide it themselves
                case For():
                    yield from self.loop(node, indent)
                case If():
                    yield f"{indent}if ({self.expression(node.condition)}) {{"
                    yield from self.nodes(node.then, indent + _INDENT)
                    if node.otherwise:
                        yield f"{indent}}} else {{"
                        yield from self.nodes(node.otherwise, indent + _INDENT)
                    yield f"{indent}}}"
                case Allocate():
                    yield from self.allocate(node, indent)
                case Block():
                    yield from self.nodes(node.body, indent)
                case _:
                    assert_never(node)

    def loop(self, node: For, indent: str) -> Iterator[str]:
        assert node.width == 1, "internal: C is written from plain loops"
        pipelined = node.kind == "pipelined" and not self.parallel
        shares = pipelined or (node.kind == "parallel" and not self.parallel)
        clauses = simd_clauses(node, self.names) if node.kind == "vector" else None
        if pipelined:
            yield from self.begin_rows(node, indent)
            indent += _INDENT
        if shares:
            yield f"{indent}#pragma omp parallel for{' schedule(static, 1)' if pipelined else ''}"
        elif clauses is not None:
            yield f"{indent}#pragma omp simd{clauses}"
        v = self.names.integer(node.variable)
        step = f"{v}++" if node.step == 1 else f"{v} += {node.step}"
        lower, upper = affine_text(node.lower, self.names), affine_text(node.upper, self.names)
        yield f"{indent}for (int64_t {v} = {lower}; {v} < {upper}; {step}) {{"
        self.parallel |= shares
        self.pipelined |= pipelined
        inside = indent + _INDENT
        if pipelined:
            yield f"{inside}row_progress *row = &rows[{self.number(node)} + 1];"
        if node.kind == "stage" and self.pipelined:
            yield f"{inside}begin_stage(row, {v});"
        yield from self.nodes(node.body, inside)
        if pipelined:
            yield f"{inside}end_row(row);"
        self.pipelined &= not pipelined
        self.parallel &= not shares
        yield f"{indent}}}"
        if pipelined:
            indent = indent.removesuffix(_INDENT)
            yield f"{indent}{_INDENT}free(rows);"
            yield f"{indent}}}"

    def begin_rows(self, node: For, indent: str) -> Iterator[str]:
        """A block with the progress of this loop's iterations."""
        count = affine_text((node.upper - node.lower + (node.step - 1)) // node.step, self.names)
        yield f"{indent}{{"
        yield f"{indent}{_INDENT}row_progress *rows = new_rows({count});"

    def number(self, node: For) -> str:
        """Of this iteration, from 0 on."""
        beyond = affine_text(affine(node.variable) - node.lower, self.names)
        return beyond if node.step == 1 else f"{_in_product(beyond)} / {node.step}"

    def allocate(self, node: Allocate, indent: str) -> Iterator[str]:
        variable = node.variable
        assert variable.lanes == 1, "internal: C is written from plain loops"
        hidden = self.variables.get(variable.name)
        self.variables[variable.name] = variable
        name, kind = self.names.array(variable.name), c_type(variable.dtype)
        heap, body = not _is_small(variable), node.body
        first_use = body[0] if body else None
        if not variable.shape and isinstance(first_use, Assign) and _sets(first_use, variable):
            yield f"{indent}{kind} {name} = {self.expression(first_use.value)};"
            body = body[1:]
        elif not variable.shape:
            # What is first set under a condition: compilers see only that it may be unset.
            yield f"{indent}{kind} {name} = {'{0}' if variable.dtype.is_complex else '0'};"
        elif heap:
            first, *others = map(self.extent, variable.shape)
            inner = "".join(f"[{extent}]" for extent in others)
            pointer = f"(*{name}){inner}" if others else f"*{name}"
            first = first if first.isidentifier() or first.isdigit() else f"({first})"
            yield f"{indent}{kind} {pointer} = malloc((size_t){first} * sizeof *{name});"
            yield f"{indent}if (!{name})"
            yield f"{indent}{_INDENT}abort();"
        else:
            yield f"{indent}{kind} {name}{''.join(f'[{self.extent(extent)}]' for extent in variable.shape)};"
        yield from self.nodes(body, indent)
        if heap:
            yield f"{indent}free({name});"
        if hidden is not None:
            self.variables[variable.name] = hidden

    def assignment(self, node: Assign) -> str:
        assert not node.across, "internal: C is written from plain loops"
        target, value = self.place(node.target), node.value
        if node.reduction is None:
            return f"{target} = {self.expression(value)}"
        combine, dtype = REDUCTIONS[node.reduction].combine, value.dtype
        assert combine is not None, "internal: argmax and argmin are UpdateArgument"
        if combine == "add" and isinstance(value, Apply) and value.op == "neg" and dtype.kind != "b":
            return f"{target} -= {self.expression(value.args[0])}"
        plain = dtype.is_float or dtype.bits >= 32
        if combine in ("add", "mul") and plain:
            return f"{target} {'+' if combine == 'add' else '*'}= {self.expression(value)}"
        old = Read(node.target.variable, node.target.subscripts, dtype)
        return f"{target} = {self.expression(Apply(combine, (old, value), dtype))}"

    def update_argument(self, node: UpdateArgument, indent: str) -> Iterator[str]:
        """A block: NaN wins, then the better value, then the smaller index; anything beats no index."""
        assert not node.across, "internal: C is written from plain loops"
        best, argument = self.place(node.best), self.place(node.argument)
        order = ">" if node.kind == "argmax" else "<"
        wins = f"candidate {order} {best}"
        if node.candidate.dtype.is_float:
            wins += f" || (candidate != candidate && {best} == {best})"
        wins += f" || ({_same('candidate', best, floating=node.candidate.dtype.is_float)} && winner < {argument})"
        yield f"{indent}{{"
        inner = indent + _INDENT
        yield f"{inner}{c_type(node.candidate.dtype)} candidate = {self.expression(node.candidate)};"
        yield f"{inner}int64_t winner = {self.expression(node.candidate_index)};"
        yield f"{inner}if ({argument} == -1 || {wins}) {{"
        yield f"{inner}{_INDENT}{best} = candidate;"
        yield f"{inner}{_INDENT}{argument} = winner;"
        yield f"{inner}}}"
        yield f"{indent}}}"

    # -- elements ---------------------------------------------------------------------------------------------------------------

    def expression(self, expr: Expr) -> str:
        return expression_text(expr, self.names, lambda read: self.element(read.tensor, read.subscripts))

    def place(self, place: Place) -> str:
        return self.element(place.variable, place.subscripts)

    def element(self, variable: str, subscripts: tuple[Subscript, ...]) -> str:
        known, name = self.variables[variable], self.names.array(variable)
        places = [affine_text(s, self.names) if isinstance(s, Affine) else self.expression(s) for s in subscripts]
        if not known.shape:
            return name if known.scope != "global" else f"*{name}"
        if known.strides is None:
            return name + "".join(f"[{place}]" for place in places)
        total = " + ".join(
            f"{_in_product(place)} * {stride}" if stride != 1 else place
            for place, stride in zip(places, known.strides, strict=True)
            if stride != 0
        )
        return f"{name}[{total or '0'}]"


def _is_flat(variable: Variable) -> bool:
    """Arrays with strides of their own are addressed element by element."""
    return variable.strides is not None


def _sets(node: Assign, variable: Variable) -> bool:
    """Whether the assignment gives the variable its first value."""
    read = {read.tensor for read in reads_of(node.value)}
    return node.target.variable == variable.name and node.reduction is None and variable.name not in read


def _is_small(variable: Variable) -> bool:
    total = variable.dtype.itemsize
    for extent in variable.shape:
        if not extent.is_constant:
            return False
        total *= extent.constant
    return total <= STACK_BYTES


def _in_product(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _same(one: str, other: str, *, floating: bool) -> str:
    if not floating:
        return f"{one} == {other}"
    return f"({one} == {other} || ({one} != {one} && {other} != {other}))"

"""Code that all threads of a block reach together: phases, sections of the first thread, replicated registers, and the barriers between them.

Where threads must wait for each other cuda/blocks/barriers.py has said.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from polyml.codegen.cuda.blocks.asynchronous import has_asynchronous
from polyml.codegen.cuda.blocks.barriers import WARP
from polyml.codegen.cuda.blocks.cooperate import written_by
from polyml.codegen.cuda.program import AXES, Kernel
from polyml.codegen.cuda.text.expression import Writer
from polyml.codegen.cuda.text.helpers import helper_name
from polyml.codegen.cuda.text.owned_loops import INDENT, owned_loop
from polyml.codegen.cuda.text.statements import (
    ThreadCode,
    atomic_update,
    combined,
    declaration,
    elements,
)
from polyml.codegen.cuda.text.types import c_type
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, UpdateArgument
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Read

__all__ = ["BlockCode"]

BARRIER = "__syncthreads();"
WAIT = ("__pipeline_commit();", "__pipeline_wait_prior(0);")
"""For the asynchronous copies of this thread."""


class BlockCode:
    """Writes a kernel's body. shared: the declarations of its shared memory, for the top of the kernel."""

    def __init__(self, writer: Writer, kernel: Kernel) -> None:
        self.writer = writer
        self.thread = ThreadCode(writer)
        self.waits = has_asynchronous(kernel)
        self.alone = kernel.threads == (1, 1, 1)
        self.axes = [axis for axis, extent in zip(AXES, kernel.threads, strict=True) if extent > 1]
        self.shared: list[str] = []
        self.scratch: set[str] = set()
        self.warps = max(1, prod(kernel.threads) // WARP)

    def lines(self, nodes: tuple[Node, ...], indent: str = INDENT) -> list[str]:
        """The nodes, in order."""
        return [line for node in nodes for line in self.node(node, indent)]

    def node(self, node: Node, indent: str) -> list[str]:
        if isinstance(node, For) and node.kind == "block":
            return self.loop(node, indent)
        if self.alone and not _has(node, "block"):
            return self.thread.node(node, indent)
        match node:
            case For(kind="thread"):
                return self.phase(node, indent)
            case Assign(across=True):
                return self.combine(node, indent)
            case UpdateArgument(across=True):
                return self.combine_pair(node, indent)
            case Allocate() if _has_inside(node):
                self.allocate(node)
                return [*self.declared(node, indent), *self.lines(node.body, indent)]
            case Block():
                meet = (*(WAIT if self.waits else ()), BARRIER) if node.barrier else ()
                return [*(indent + line for line in meet), *self.lines(node.body, indent)]
            case For() | If() if _has_inside(node):
                return self.loop(node, indent) if isinstance(node, For) else self.branch(node, indent)
            case _:
                return self.plain(node, indent)

    # -- structure ----------------------------------------------------------------------------------------------------------------

    def loop(self, node: For, indent: str) -> list[str]:
        """A loop that every thread of the block runs. What its iterations leave behind is settled at its end."""
        if node.kind == "block":
            head, inner, tail = owned_loop(self.writer, node, indent)
        else:
            w = self.writer
            name = w.names[node.variable]
            bounds = (
                f"{w.index_type} {name} = {w.index(node.lower)}; {name} < {w.index(node.upper)}; {name} += {node.step}"
            )
            head, inner, tail = [f"{indent}for ({bounds}) {{"], indent + INDENT, [f"{indent}}}"]
        outer = self.writer.ranges
        self.writer.ranges = outer.enter(node)
        body = self.lines(node.body, inner)
        self.writer.ranges = outer
        return [*head, *body, *tail]

    def branch(self, node: If, indent: str) -> list[str]:
        """A condition that has one value for the block."""
        lines = [f"{indent}if ({self.writer.condition(node.condition)}) {{", *self.lines(node.then, indent + INDENT)]
        if node.otherwise:
            lines += [f"{indent}}} else {{", *self.lines(node.otherwise, indent + INDENT)]
        return [*lines, f"{indent}}}"]

    def allocate(self, node: Allocate) -> None:
        self.writer.variables[node.variable.name] = node.variable

    def declared(self, node: Allocate, indent: str) -> list[str]:
        variable, w = node.variable, self.writer
        if variable.scope == "shared":
            extent = f"[{elements(variable)}]" if variable.shape else ""
            aligned = "__align__(16) " if variable.shape else ""
            line = f"{INDENT}__shared__ {aligned}{c_type(variable.dtype)} {w.names[variable.name]}{extent};"
            self.shared += [] if line in self.shared else [line]
            return []
        return [f"{indent}{declaration(variable, w)};"]

    # -- work ---------------------------------------------------------------------------------------------------------------------

    def phase(self, node: For, indent: str) -> list[str]:
        """A thread loop, each thread with the iterations that it owns; a loop over an axis that this one has not named is the first thread's."""
        named = {n.axis for n in walk_nodes((node,)) if isinstance(n, For) and n.kind == "thread"}
        others = [f"threadIdx.{axis} == 0" for axis in self.axes if axis not in named]
        if others:
            return [f"{indent}if ({' && '.join(others)}) {{", *self.thread.node(node, indent + INDENT), f"{indent}}}"]
        return self.thread.node(node, indent)

    def plain(self, node: Node, indent: str) -> list[str]:
        """A node without thread loops: by all threads into their own registers, else by the first one."""
        replicated = {n for n, v in self.writer.variables.items() if v.scope == "register"}
        written = written_by(node)
        if written and written <= replicated:
            return self.thread.node(node, indent)
        assert not written & replicated, "internal: memory and replicated registers are written together"
        first = " && ".join(f"threadIdx.{axis} == 0" for axis in self.axes)
        return [f"{indent}if ({first}) {{", *self.thread.node(node, indent + INDENT), f"{indent}}}"]

    def combine(self, node: Assign, indent: str) -> list[str]:
        """A reduction across the threads of the block: its barriers settle all that came before."""
        w = self.writer
        assert isinstance(node.value, Read), "internal: threads combine registers"
        assert node.reduction is not None, "internal: threads are combined by a reduction"
        dtype = w.variables[node.target.variable].dtype
        name = f"block_{node.reduction}"
        w.use(name, dtype)
        own = w.names[node.value.tensor]
        lines = [f"{indent}{own} = {helper_name(name, dtype)}({own}, {self.room(c_type(dtype), dtype.name)});"]
        target = w.element(node.target.variable, node.target.subscripts)
        update = f"{target} = {combined(w, node.reduction, own, target, dtype)};"
        if node.atomic and w.variables[node.target.variable].scope != "register":
            update = atomic_update(w, node.reduction, own, target, dtype)
        return lines + self.finish([update], node.target.variable, indent)

    def combine_pair(self, node: UpdateArgument, indent: str) -> list[str]:
        w = self.writer
        assert isinstance(node.candidate, Read), "internal: threads combine registers"
        assert isinstance(node.candidate_index, Read), "internal: threads combine registers"
        dtype = w.variables[node.best.variable].dtype
        w.use(f"block_{node.kind}", dtype)
        own, index = w.names[node.candidate.tensor], w.names[node.candidate_index.tensor]
        places = f"{self.room(c_type(dtype), dtype.name)}, {self.room('long long', 'index')}"
        lines = [f"{indent}{helper_name(f'block_{node.kind}', dtype)}({own}, {index}, {places});"]
        best = w.element(node.best.variable, node.best.subscripts)
        argument = w.element(node.argument.variable, node.argument.subscripts)
        test = f"if ({helper_name(node.kind, dtype)}({own}, {index}, {best}, {argument})) {{ {best} = {own}; {argument} = {index}; }}"
        return lines + self.finish([test], node.best.variable, indent)

    def finish(self, updates: Iterable[str], target: str, indent: str) -> list[str]:
        """The updates of a result that all threads have: by each in its own register, else by the first."""
        if self.writer.variables[target].scope == "register":
            return [f"{indent}{update}" for update in updates]
        first = " && ".join(f"threadIdx.{axis} == 0" for axis in self.axes)
        return [f"{indent}if ({first}) {{", *(f"{indent}{INDENT}{update}" for update in updates), f"{indent}}}"]

    def room(self, kind: str, suffix: str) -> str:
        """Shared memory in which warps exchange their results."""
        name = f"scratch_{suffix}"
        if name not in self.scratch:
            self.scratch.add(name)
            self.shared.append(f"{INDENT}__shared__ {kind} {name}[{self.warps}];")
        return name


def _has(node: Node, kind: str) -> bool:
    return any(isinstance(inner, For) and inner.kind == kind for inner in walk_nodes((node,)))


def _has_inside(node: Node) -> bool:
    """Whether threads come apart, or are combined, below the node."""
    return any(
        (isinstance(inner, For) and inner.mapped) or (isinstance(inner, Assign | UpdateArgument) and inner.across)
        for inner in walk_nodes((node,))
    )

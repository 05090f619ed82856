"""Copies from an argument to shared memory that need not be finished before the next barrier: threads go on while they are under way (cp.async, from compute capability 8.0 on;
earlier devices copy at once).

Source: CUDA C++ Programming Guide, "Asynchronous Data Copies", pipeline primitives.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.cuda.program import Kernel
from polyml.codegen.loops import Allocate, Assign, Node, UpdateArgument
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Read

__all__ = ["COPY_SIZES", "has_asynchronous", "without_waiting"]

COPY_SIZES = (4, 8, 16)
"""Bytes that one asynchronous copy can move."""


def without_waiting(kernel: Kernel) -> Kernel:
    """The kernel with its copies of unchanging arguments to shared memory asynchronous; not where reductions across the block bring barriers of their own."""
    every = list(walk_nodes(kernel.function.body))
    if kernel.threads == (1, 1, 1) or any(isinstance(n, Assign | UpdateArgument) and n.across for n in every):
        return kernel
    shared = {
        n.variable.name: n.variable.dtype for n in every if isinstance(n, Allocate) and n.variable.scope == "shared"
    }
    constant = {v.name for v in kernel.function.arguments} - kernel.function.written

    def visit(node: Node) -> Node:
        match node:
            case Assign(value=Read() as value) if node.target.variable in shared and value.tensor in constant:
                copies = node.reduction is None and value.dtype == shared[node.target.variable]
                return replace(node, asynchronous=True) if copies and value.dtype.itemsize in COPY_SIZES else node
            case _:
                return with_body(node, lambda body: tuple(map(visit, body)))

    return replace(kernel, function=replace(kernel.function, body=tuple(map(visit, kernel.function.body))))


def has_asynchronous(kernel: Kernel) -> bool:
    """Whether a barrier of the kernel waits for copies, too."""
    return any(isinstance(n, Assign) and n.asynchronous for n in walk_nodes(kernel.function.body))

"""Loops -> CudaRegion: the loops of a mapped region cut into kernels and the host program around them.

A block loop, with all that stands in it, is a kernel. Loops, conditions and allocations around block loops belong to the host. What no block loop contains
runs in a grid of one block: neighbours of that kind share a kernel. Kernels of a region run in order, each after the one before has finished.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import assert_never

from polyml.codegen.cuda.blocks.asynchronous import without_waiting
from polyml.codegen.cuda.blocks.barriers import place_barriers
from polyml.codegen.cuda.blocks.cooperate import cooperate, settle_scopes
from polyml.codegen.cuda.blocks.halo import stage_windows
from polyml.codegen.cuda.blocks.private import private_registers
from polyml.codegen.cuda.blocks.whole import split_whole_tiles
from polyml.codegen.cuda.program import AXES, Branch, CudaRegion, DeviceArray, HostStep, Kernel, Launch, Repeat
from polyml.codegen.loops import (
    Allocate,
    Assign,
    Axis,
    Block,
    For,
    Function,
    If,
    Node,
    Prefetch,
    UpdateArgument,
    Variable,
)
from polyml.codegen.passes.registers.scalar_replacement import scalar_replacement
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.passes.unrolling.unroll_and_jam import unroll_and_jam
from polyml.codegen.rewrite import expressions, flatten, uses, variables_of, walk_nodes, with_body
from polyml.errors import CodegenError
from polyml.gpu_core import Core, core_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["split_kernels"]

MAX_SHARED, MAX_LOCAL = 8 * 1024, 1024
"""Bytes: scratch arrays of a one-block kernel that are larger than this live in device memory (with threads that share it, or in its only thread)."""

MAX_TILES = 40 * 1024
"""Bytes of shared memory for tiles where nobody says how much there is."""


def split_kernels(
    function: Function, *, prefix: str = "", core: Core | None = None, room: int = MAX_TILES
) -> CudaRegion:
    """The region's kernels, ready for the emitter, and its host program.

    Args:
        function: as generated, with block and thread loops. prefix: of the kernels' names. core: what runs them; None: that of an A100. room: bytes of shared memory for a
            block's arrays.
    """
    function = simplify(function)
    work = _Split(function, prefix or function.name, core or core_of(""), room)
    steps = work.steps(_hoisted(flatten(function.body), work))
    return CudaRegion(
        name=function.name,
        kernels=tuple(work.kernels),
        scratch=tuple(DeviceArray(variable) for variable in work.scratch),
        steps=steps,
    )


@dataclass(slots=True)
class _Split:
    function: Function
    prefix: str
    core: Core
    room: int
    kernels: list[Kernel] = field(default_factory=list)
    scratch: list[Variable] = field(default_factory=list)

    def steps(self, nodes: tuple[Node, ...]) -> tuple[HostStep, ...]:
        """The host's steps for nodes that it stands around."""
        made: list[HostStep] = []
        together: list[Node] = []

        def finish() -> None:
            if together:
                made.append(self.launch(tuple(together)))
                together.clear()

        for node in nodes:
            if not _has_blocks(node):
                together.append(node)
                continue
            finish()
            made.extend(self.step(node))
        finish()
        return tuple(made)

    def step(self, node: Node) -> tuple[HostStep, ...]:
        """A node with block loops in it."""
        match node:
            case For(kind="block"):
                return (self.launch((node,)),)
            case For():
                assert not node.mapped, "internal: block loops inside a thread loop"
                body = self.steps(node.body)
                return (Repeat(variable=node.variable, lower=node.lower, upper=node.upper, step=node.step, body=body),)
            case If():
                return (
                    Branch(condition=node.condition, then=self.steps(node.then), otherwise=self.steps(node.otherwise)),
                )
            case Allocate():
                self.scratch.append(replace(node.variable, scope="global", alignment=None))
                return self.steps(node.body)
            case Block():
                return self.steps(node.body)
            case Assign() | UpdateArgument() | Prefetch():
                raise AssertionError("internal: an assignment has no block loops")
            case _:
                assert_never(node)

    def launch(self, body: tuple[Node, ...]) -> Launch:
        """A kernel of its own for the nodes."""
        accessed = {use.variable for node in walk_nodes(body) for use in uses(node)}
        written = frozenset(use.variable for node in walk_nodes(body) for use in uses(node) if use.write)
        outside = [*self.function.arguments, *self.scratch]
        arguments = tuple(variable for variable in outside if variable.name in accessed)
        threads = _threads(body)
        kernel = Function(
            name=f"{self.prefix}_k{len(self.kernels)}",
            arguments=arguments,
            written=written & {variable.name for variable in arguments},
            sizes=tuple(sorted(_free(body) | _extent_sizes(arguments))),
            body=_with_factors(body, threads),
        )
        # Ordering: accumulators become the threads' own before elements are looked for that stay in registers.
        _require_bound(body)
        kernel = stage_windows(split_whole_tiles(kernel), threads, self.core, self.room)
        kernel, _ = unroll_and_jam(cooperate(kernel), guarded=True)
        kernel = settle_scopes(scalar_replacement(private_registers(simplify(kernel))))
        x, y, z = (threads.get(axis, 1) for axis in AXES)
        self.kernels.append(place_barriers(without_waiting(Kernel(function=kernel, threads=(x, y, z)))))
        return Launch(len(self.kernels) - 1)


def _require_bound(body: tuple[Node, ...]) -> None:
    """Every assignment stands in a loop per axis that its kernel, or its phase, spreads: so exactly one thread runs it.

    And a scratch variable is allocated in one place: parts of a nest that isl has taken apart would each have their own.
    """

    def visit(nodes: tuple[Node, ...], blocks: frozenset[str], threads: frozenset[str], phase: frozenset[str]) -> None:
        for node in nodes:
            match node:
                case Assign() | UpdateArgument():
                    if wanted != blocks or threads != phase:
                        name = next(use.variable for use in uses(node) if use.write)
                        raise CodegenError(f"the loop that says who runs an assignment to {name} is missing")
                case For(kind="block"):
                    visit(node.body, blocks | {node.axis or ""}, threads, phase)
                case For(kind="thread"):
                    visit(node.body, blocks, threads | {node.axis or ""}, phase or _axes((node,), "thread"))
                case For() | Allocate() | Block():
                    visit(node.body, blocks, threads, phase)
                case If():
                    visit((*node.then, *node.otherwise), blocks, threads, phase)
                case Prefetch():
                    pass
                case _:
                    assert_never(node)

    wanted = _axes(body, "block")
    visit(body, frozenset(), frozenset(), frozenset())
    allocated = [node.variable.name for node in walk_nodes(body) if isinstance(node, Allocate)]
    twice = {name for name in allocated if allocated.count(name) > 1}
    if twice and any(isinstance(node, For) and node.mapped for node in walk_nodes(body)):
        raise CodegenError(f"the scratch array {min(twice)} is allocated in two parts of a kernel")


def _axes(nodes: tuple[Node, ...], kind: str) -> frozenset[str]:
    return frozenset(n.axis or "" for n in walk_nodes(nodes) if isinstance(n, For) and n.kind == kind)


def _has_blocks(node: Node) -> bool:
    return any(isinstance(inner, For) and inner.kind == "block" for inner in walk_nodes((node,)))


def _threads(body: tuple[Node, ...]) -> dict[Axis, int]:
    """Threads per axis: the most that a loop of the kernel asks for."""
    found: dict[Axis, int] = {}
    for node in walk_nodes(body):
        if isinstance(node, For) and node.kind == "thread":
            assert node.axis is not None, "internal: a thread loop without an axis"
            found[node.axis] = max(found.get(node.axis, 1), node.factor)
    return found


def _with_factors(nodes: tuple[Node, ...], threads: dict[Axis, int]) -> tuple[Node, ...]:
    """Thread loops with the block's size as their factor, so that a value has one owner in the whole kernel."""

    def visit(node: Node) -> Node:
        if isinstance(node, For) and node.kind == "thread" and node.axis is not None:
            node = replace(node, factor=threads[node.axis])
        return with_body(node, lambda body: tuple(visit(child) for child in body))

    return tuple(visit(node) for node in nodes)


def _free(body: tuple[Node, ...]) -> frozenset[str]:
    """The sizes and loop variables of outer loops that the nodes depend on."""
    used, bound = set[str](), set[str]()
    for node in walk_nodes(body):
        for expr in expressions(node):
            used |= variables_of(expr)
        match node:
            case Assign():
                used |= _variables(node.target.subscripts)
            case UpdateArgument():
                used |= _variables(node.best.subscripts) | _variables(node.argument.subscripts)
            case For():
                bound.add(node.variable)
                used |= node.lower.variables() | node.upper.variables()
            case Allocate():
                used |= _variables(node.variable.shape)
            case If() | Block() | Prefetch():
                pass
            case _:
                assert_never(node)
    for use in (use for node in walk_nodes(body) for use in uses(node)):
        used |= _variables(use.subscripts)
    return frozenset(used - bound)


def _extent_sizes(arguments: tuple[Variable, ...]) -> frozenset[str]:
    """The sizes that addresses in the arrays depend on: those of all extents but the first."""
    return frozenset(
        name for v in arguments if v.strides is None for extent in v.shape[1:] for name in extent.variables()
    )


def _variables(subscripts: tuple[object, ...]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for subscript in subscripts:
        if isinstance(subscript, Affine):
            found |= subscript.variables()
    return found


def _hoisted(nodes: tuple[Node, ...], work: _Split) -> tuple[Node, ...]:
    """The nodes without scratch arrays that a one-block kernel has no room for: these become device memory.

    One of them exists at a time, whatever loop it stands in, so that one piece of memory serves all iterations.
    """
    threaded = any(isinstance(inner, For) and inner.mapped for inner in walk_nodes(nodes))

    def visit(node: Node) -> tuple[Node, ...]:
        if isinstance(node, For) and node.mapped:
            return (node,)
        if isinstance(node, Allocate) and not _fits(
            node.variable, min(MAX_SHARED, work.room) if threaded else MAX_LOCAL
        ):
            work.scratch.append(replace(node.variable, scope="global", alignment=None))
            return tuple(made for child in node.body for made in visit(child))
        return (with_body(node, lambda body: tuple(made for child in body for made in visit(child))),)

    return tuple(made for node in nodes for made in visit(node))


def _fits(variable: Variable, limit: int) -> bool:
    if variable.scope == "register":
        return True
    total = variable.dtype.itemsize
    for extent in variable.shape:
        if extent != affine(extent.constant):
            return False
        total *= extent.constant
    return total <= limit

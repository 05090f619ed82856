"""Barriers where threads of a block exchange something, and nowhere else.

Between two steps a barrier is needed when different threads touch one element in both and one of them writes (`cuda/proofs/touches.py` decides that exactly). In a straight run
of steps one is put as late as possible, which takes the fewest; where the end of a loop's body meets its beginning in the next iteration, the place is chosen that
leaves the fewest in the whole body. A reduction across warps has barriers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from polyml.codegen.cuda.program import Kernel
from polyml.codegen.cuda.proofs.touches import Nest, Step, Touches, has_phases
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, UpdateArgument
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes
from polyml.records import dataclass

__all__ = ["WARP", "crosses_warps", "is_together", "place_barriers"]

WARP = 32


def place_barriers(kernel: Kernel) -> Kernel:
    """The kernel with a Block that is a barrier wherever its threads must wait for each other."""
    if kernel.threads == (1, 1, 1):
        return kernel
    body = _Placement(Touches.of(kernel), crosses_warps(kernel)).run(kernel.function.body, (), _State())
    return replace(kernel, function=replace(kernel.function, body=tuple(body)))


def crosses_warps(kernel: Kernel) -> bool:
    """Whether a reduction across the block goes through shared memory, with barriers."""
    x, y, z = kernel.threads
    return x * y * z > WARP


def is_together(node: Node) -> bool:
    """Whether all threads run the node together: there are thread loops, or a reduction across threads, in it."""
    return has_phases(node) or any(
        isinstance(inner, Assign | UpdateArgument) and inner.across for inner in walk_nodes((node,))
    )


@dataclass(slots=True)
class _State:
    """What has happened since the last barrier (pending), and from the beginning of the loop's body to its first barrier (heads); met: there was one."""

    pending: list[Step] = field(default_factory=list)
    heads: list[Step] = field(default_factory=list)
    met: bool = False
    count: int = 0

    def barrier(self) -> Node:
        self.pending, self.met = [], True
        self.count += 1
        return Block((), barrier=True)

    def take(self, step: Step) -> None:
        self.pending.append(step)
        if not self.met:
            self.heads.append(step)


@dataclass(slots=True)
class _Placement:
    touches: Touches
    warps: bool
    steps: dict[int, Step] = field(default_factory=dict)
    nests: dict[int, Nest] = field(default_factory=dict)
    kept: list[Node] = field(default_factory=list)

    def run(
        self, nodes: Sequence[Node], around: tuple[Nest, ...], state: _State, forced: int | None = None
    ) -> list[Node]:
        """The nodes with barriers; `forced`: there is one before the node of that number (after the last: the number of nodes)."""
        made: list[Node] = []
        for position, node in enumerate(nodes):
            if position == forced:
                made.append(state.barrier())
            made += self.node(node, around, state)
        if forced == len(nodes):
            made.append(state.barrier())
        return made

    def node(self, node: Node, around: tuple[Nest, ...], state: _State) -> list[Node]:
        match node:
            case For() if node.kind == "block" or (node.kind != "thread" and is_together(node)):
                return self.loop(node, around, state)
            case Allocate() | Block() if is_together(node):
                body = tuple(self.run(node.body, around, state))
                return [replace(node, body=body)]
            case If() if is_together(node):
                return self.branch(node, around, state)
            case Assign() | UpdateArgument() if node.across and self.warps:
                state.pending, state.met = [], True
                return self.step(node, around, state)
            case _:
                return self.step(node, around, state)

    def step(self, node: Node, around: tuple[Nest, ...], state: _State) -> list[Node]:
        return self.ahead([self._step(node, around)], state, [node])

    def _step(self, node: Node, around: tuple[Nest, ...]) -> Step:
        if id(node) not in self.steps:
            self.kept.append(node)  # so that no other node gets its number
            self.steps[id(node)] = self.touches.step(len(self.steps), node, around)
        return self.steps[id(node)]

    def ahead(self, steps: Sequence[Step], state: _State, nodes: list[Node]) -> list[Node]:
        """The nodes, which run these steps, behind a barrier where one is needed."""
        made = []
        if any(self.touches.meet(a, b, None, far=False) for a in state.pending for b in steps):
            made.append(state.barrier())
        for step in steps:
            state.take(step)
        return [*made, *nodes]

    def branch(self, node: If, around: tuple[Nest, ...], state: _State) -> list[Node]:
        """A condition that has one value for the block."""
        if id(node) not in self.steps:
            self.kept.append(node)
            self.steps[id(node)] = self.touches.condition(len(self.steps), node, around)
        made = self.ahead([self.steps[id(node)]], state, [])
        parts, inside = [], [_State(list(state.pending)), _State(list(state.pending))]
        for body, own in zip((node.then, node.otherwise), inside, strict=True):
            parts.append(tuple(self.run(body, around, own)))
            state.count += own.count
            if not state.met:
                state.heads += own.heads
        # Either may have run, without a barrier of the other.
        both = {step.number: step for own in inside for step in own.pending}
        state.pending = list(both.values())
        state.met = state.met or all(own.met for own in inside)
        return [*made, replace(node, then=parts[0], otherwise=parts[1])]

    def loop(self, node: For, around: tuple[Nest, ...], state: _State) -> list[Node]:
        """A loop that every thread of the block runs."""
        if id(node) not in self.nests:
            self.kept.append(node)
            self.nests[id(node)] = Nest(len(self.nests), node)
        nest = self.nests[id(node)]
        found = self.body(node.body, (*around, nest), nest)
        inside = found[0]
        made = []
        if any(self.touches.meet(a, b, None, far=False) for a in state.pending for b in inside.heads):
            made.append(state.barrier())
        if not state.met:
            state.heads += inside.heads
        runs = Ranges(tuple(n.loop for n in around)).is_positive(node.upper - node.lower) and node.kind != "block"
        if inside.met and runs:
            state.pending, state.met = [], True
        kept = {step.number: step for step in (*state.pending, *inside.pending)}
        state.pending = list(kept.values())
        state.count += inside.count
        return [*made, replace(node, body=found[1])]

    def body(self, nodes: tuple[Node, ...], around: tuple[Nest, ...], nest: Nest) -> tuple[_State, tuple[Node, ...]]:
        """The loop's body with the fewest barriers."""
        if len(nodes) == 1 and isinstance(nodes[0], Allocate) and is_together(nodes[0]):
            state, inner = self.body(nodes[0].body, around, nest)
            return state, (replace(nodes[0], body=inner),)
        best: tuple[_State, tuple[Node, ...]] | None = None
        for forced in (None, *range(len(nodes) + 1)):
            if best is not None and forced is not None and best[0].count <= 1:
                break
            state = _State()
            made = tuple(self.run(nodes, around, state, forced))
            if self.again(state, nest):
                continue
            if forced is None:
                return state, made
            if best is None or state.count < best[0].count:
                best = state, made
        assert best is not None, "internal: a barrier at the end of a body is enough"
        return best

    def again(self, state: _State, nest: Nest) -> bool:
        """Whether what is pending at the end of the body meets what is ahead of its first barrier, an iteration later."""
        far = not state.met or nest.loop.kind == "block"
        return any(self.touches.meet(a, b, nest, far=far) for a in state.pending for b in state.heads)

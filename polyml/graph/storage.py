"""Which tensors share one array: functional updates in place, loops without copies, written inputs in the caller's memory.

Tensors are values; an array is memory that holds one value at a time. Two tensors may share an array when their lifetimes do not overlap in the order in which the ops
run. An op may overwrite a value that it reads itself for the last time: whoever compiles the op keeps its right side simultaneous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from polyml.expressions import Read
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import read_names, results_of, tensors_of
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["assign_storage", "settle_results"]

_ALWAYS = 1 << 60


@dataclass(slots=True)
class _Life:
    """When a tensor's value is in memory: from the op that makes it to its last use, as positions in the execution order."""

    start: int
    end: int


def assign_storage(graph: Graph, ops: Sequence[Op]) -> dict[str, str]:
    """The array of every tensor. An array is named after the input it is, else the output that it becomes, else its first tensor.

    Args:
        ops: the graph's ops in the order in which they run (regions may have reordered them).
    """
    tensors = tensors_of(graph)
    lives = _lives(graph, ops)
    classes = _Classes(graph, tensors, lives)
    for older, newer in _wishes(graph, ops):
        classes.join(older, newer)
    return classes.names(graph)


def settle_results(graph: Graph) -> Graph:
    """The graph with copy equations where a written input's final value, or an output, cannot be where the caller expects it.

    Afterwards `assign_storage` gives each final value the array of its input, and no output is an input's own tensor (except that an input may be
    returned as it is at the end: an output that is a final value). The same object when nothing is needed.
    """
    copies = _Copies({**tensors_of(graph)}, graph.sizes)
    finals = {item.final.name for item in graph.inputs if item.final is not None}
    own = {item.tensor.name for item in graph.inputs}
    written = {item.tensor.name for item in graph.inputs if item.written}
    outputs, first, last = list(graph.outputs), list[Op](), list[Op]()
    for position, tensor in enumerate(graph.outputs):
        if tensor.name in own - finals:
            outputs[position] = copies.add(tensor, f"{tensor.name}_result", first)
    inputs = list(graph.inputs)
    for position, item in enumerate(graph.inputs):
        if item.final is not None and item.final.name in written - {item.tensor.name}:
            inputs[position] = replace(item, final=copies.add(item.final, f"{item.final.name}_old", first))
    if first:
        graph = replace(graph, outputs=tuple(outputs), inputs=tuple(inputs), ops=(*first, *graph.ops))
    storage = assign_storage(graph, graph.ops)
    for position, item in enumerate(inputs):
        if item.final is not None and storage[item.final.name] != item.tensor.name:
            inputs[position] = replace(item, final=copies.add(item.final, f"{item.tensor.name}_final", last))
    return replace(graph, inputs=tuple(inputs), ops=(*graph.ops, *last)) if last else graph


@dataclass(slots=True)
class _Copies:
    """Makes whole-tensor copy equations with fresh names."""

    tensors: dict[str, Tensor]
    sizes: tuple[str, ...]

    def add(self, source: Tensor, wish: str, ops: list[Op]) -> Tensor:
        name = underscored(wish, self.tensors)
        result = self.tensors[name] = replace(source, name=name)
        indices = tuple(f"e{d}" for d in range(len(source.shape)))
        domain = box(name, indices, dict(zip(indices, source.shape, strict=True)), self.sizes)
        places = tuple(affine(e) for e in indices)
        body = Read(source.name, places, source.dtype)
        ops.append(Equation(result=result, indices=indices, domain=domain, target=places, body=body))
        return result


def _wishes(graph: Graph, ops: Sequence[Op]) -> Iterator[tuple[str, str]]:
    """Pairs that should share, the most valuable first: update chains, then loops' carried values, then written inputs."""
    loops: list[Carried] = []
    pending = list(ops)
    while pending:
        op = pending.pop(0)
        if isinstance(op, Equation) and op.base is not None:
            yield op.base.name, op.result.name
        elif isinstance(op, Loop):
            loops += op.carried
            pending = [*op.body, *pending]
    # Copies at the end of each iteration cost most, then one before the loop.
    for carried in reversed(loops):
        yield carried.inner.name, carried.next.name
    for carried in reversed(loops):
        yield carried.inner.name, carried.result.name
        yield carried.initial.name, carried.inner.name
    for item in graph.inputs:
        if item.final is not None:
            yield item.tensor.name, item.final.name


def _lives(graph: Graph, ops: Sequence[Op]) -> dict[str, _Life]:
    """The lifetime of every tensor."""
    lives = {item.tensor.name: _Life(-1, -1) for item in graph.inputs}
    clock = 0

    def visit(block: Sequence[Op]) -> None:
        nonlocal clock
        for op in block:
            clock += 1
            match op:
                case Loop():
                    start = clock
                    for carried in op.carried:
                        lives[carried.initial.name].end = max(lives[carried.initial.name].end, start)
                        lives[carried.inner.name] = _Life(start, start)
                    visit(op.body)
                    clock += 1
                    inside = {c.inner.name for c in op.carried} | {t.name for o in op.body for t in results_of(o)}
                    for name in _used_in(op.body) - inside:
                        lives[name].end = max(lives[name].end, clock)  # every iteration reads it
                    for carried in op.carried:
                        lives[carried.next.name].end = max(lives[carried.next.name].end, clock)
                        lives[carried.result.name] = _Life(clock, clock)
                case _:
                    for name in read_names(op):
                        lives[name].end = max(lives[name].end, clock)
                    for tensor in results_of(op):
                        lives[tensor.name] = _Life(clock, clock)

    visit(ops)
    for tensor in (*graph.outputs, *(i.final for i in graph.inputs if i.final is not None)):
        lives[tensor.name].end = _ALWAYS
    for item in graph.inputs:
        if not item.written:
            lives[item.tensor.name].end = _ALWAYS
    return lives


def _used_in(block: Sequence[Op]) -> set[str]:
    return {name for op in block for name in read_names(op)}


class _Classes:
    """Disjoint sets of tensors that share an array."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor], lives: Mapping[str, _Life]) -> None:
        self.tensors, self.lives = tensors, lives
        self.members = {name: [name] for name in tensors}
        self.inputs = {item.tensor.name: item for item in graph.inputs}

    def join(self, one: str, other: str) -> bool:
        """Puts two tensors into one array if that clobbers nothing."""
        a, b = self.members[one], self.members[other]
        if a is b:
            return True
        mine, yours = self.tensors[one], self.tensors[other]
        if (mine.dtype, mine.shape) != (yours.dtype, yours.shape):
            return False
        callers = [name for name in (*a, *b) if name in self.inputs]
        if len(callers) > 1 or any(not self.inputs[name].written for name in callers):
            return False
        if callers and self.inputs[callers[0]].final is not None and self._blocks_final(callers[0], (*a, *b)):
            return False
        if any(self._overlap(x, y) for x in a for y in b):
            return False
        a += b
        for name in b:
            self.members[name] = a
        return True

    def _blocks_final(self, caller: str, members: Sequence[str]) -> bool:
        """True when sharing the caller's array with `members` keeps the final value from being in it."""
        final = self.inputs[caller].final
        assert final is not None, "internal: asked for a final value that is not there"
        if final.name in members:
            return False
        return any(self._overlap(final.name, name) for name in members)

    def _overlap(self, one: str, other: str) -> bool:
        a, b = self.lives[one], self.lives[other]
        if a.start == b.start:
            return True
        first, second = (a, b) if a.start < b.start else (b, a)
        return second.start < first.end

    def names(self, graph: Graph) -> dict[str, str]:
        outputs = {tensor.name for tensor in graph.outputs}
        found: dict[str, str] = {}
        for name, members in self.members.items():
            caller = next((m for m in members if m in self.inputs), None)
            returned = next((m for m in members if m in outputs), None)
            found[name] = caller or returned or members[0]
        return found

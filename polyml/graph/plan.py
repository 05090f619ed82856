"""The Plan: the host program around the regions, as data. A Kernel runs it; nothing is decided after it.

Tensors live in arrays (storage.py: tensors that share memory as versions of one value), arrays that regions exchange live in buffers: the caller's, the
results', or temporaries, which later arrays of no greater size take over once they are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyml.dtypes import DType
from polyml.graph.host_steps import (
    ALIGNMENT,
    Allocate,
    Argument,
    Buffer,
    BufferKind,
    CheckFlag,
    Free,
    Launch,
    Plan,
    Step,
)
from polyml.graph.ir import Check, Equation, Graph, Op, Tensor
from polyml.graph.region import Region
from polyml.graph.storage import assign_storage
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import Affine

__all__ = [
    "ALIGNMENT",
    "Allocate",
    "Argument",
    "Buffer",
    "BufferKind",
    "CheckFlag",
    "Free",
    "Launch",
    "Plan",
    "Step",
    "plan",
]


def plan(graph: Graph, regions: Sequence[Region]) -> Plan:
    """The host program of the graph, whose ops the regions hold in executable order.

    The graph must be settled (storage.settle_results), as `rewrite` leaves it.
    """
    tensors = tensors_of(graph)
    order: list[Op] = [op for region in regions for op in region.ops]
    checks = [op for op in graph.ops if isinstance(op, Check)]
    storage = assign_storage(graph, [*order, *checks])
    for item in graph.inputs:
        if item.final is not None:
            held = storage[item.final.name]
            assert held == item.tensor.name, f"internal: the final value of {item.tensor.name} is in {held}"
    memory = _Memory(graph, tensors, storage)
    last_use = _last_uses(regions, storage)
    pending = list(checks)
    made = {item.tensor.name for item in graph.inputs}
    for number, region in enumerate(regions):
        pending = _check(pending, made, memory)
        arrays = dict.fromkeys(storage[t.name] for t in (*region.inputs, *region.outputs))
        arguments = tuple(Argument(array, memory.buffer_of(array)) for array in arrays)
        memory.steps.append(Launch(number, arguments, memory.condition(region)))
        made |= {t.name for t in region.outputs}
        pending = _check(pending, made, memory)
        for array in arrays:
            if last_use[array] == number:
                memory.release(array)
    assert not _check(pending, made, memory), "internal: a check's flag is never made"
    return memory.finish(storage)


def _check(pending: Sequence[Check], made: set[str], memory: _Memory) -> list[Check]:
    """Emits the checks whose flags exist, and returns the others."""
    for check in pending:
        if check.flag.name in made:
            memory.check(check)
    return [check for check in pending if check.flag.name not in made]


def _last_uses(regions: Sequence[Region], storage: Mapping[str, str]) -> dict[str, int]:
    """Per array the last region that touches it from outside (flags are checked right after their region)."""
    last: dict[str, int] = {}
    for number, region in enumerate(regions):
        last.update((storage[t.name], number) for t in (*region.inputs, *region.outputs))
    return last


class _Memory:
    """Hands out buffers while the steps are written down."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor], storage: Mapping[str, str]) -> None:
        self.storage, self.tensors = storage, tensors
        self.steps: list[Step] = []
        self.buffers: dict[str, Buffer] = {}
        self.held: dict[str, str] = {}
        self.free: list[str] = []
        self.inputs = tuple(item.tensor.name for item in graph.inputs)
        self.outputs = tuple(storage[t.name] for t in graph.outputs)
        for name in self.inputs:
            self.fixed(name, "input")
        for name in self.outputs:
            if name not in self.buffers:
                self.fixed(name, "output")

    def fixed(self, array: str, kind: BufferKind) -> None:
        tensor = self.tensors[array]
        self.buffers[array] = Buffer(name=array, kind=kind, dtype=tensor.dtype, shape=tensor.shape)
        self.held[array] = array

    def buffer_of(self, array: str) -> str:
        """The buffer that holds the array now; a temporary is found or allocated at its first use."""
        if array not in self.held:
            wanted = self.tensors[array]
            reused = self.best_free(wanted)
            if reused is None:
                self.buffers[array] = Buffer(name=array, kind="temporary", dtype=wanted.dtype, shape=wanted.shape)
                self.steps.append(Allocate(array, _constant_bytes(wanted.dtype, wanted.shape)))
                reused = array
            else:
                self.free.remove(reused)
            self.held[array] = reused
        return self.held[array]

    def best_free(self, wanted: Tensor) -> str | None:
        """The smallest free temporary that is large enough (for symbolic sizes: of the same size)."""
        need = _constant_bytes(wanted.dtype, wanted.shape)
        fitting: list[tuple[int, str]] = []
        for name in self.free:
            buffer = self.buffers[name]
            have = _constant_bytes(buffer.dtype, buffer.shape)
            same = (buffer.dtype.itemsize, buffer.shape) == (wanted.dtype.itemsize, wanted.shape)
            if same or (need is not None and have is not None and have >= need):
                fitting.append((have or 0, name))
        return min(fitting)[1] if fitting else None

    def release(self, array: str) -> None:
        buffer = self.held[array]
        if self.buffers[buffer].kind == "temporary":
            self.free.append(buffer)

    def check(self, check: Check) -> None:
        array = self.storage[check.flag.name]
        message = check.message if check.span is None else f"{check.message}\n{check.span.excerpt()}"
        self.steps.append(CheckFlag(self.buffer_of(array), message, check.error, check.indices, check.extent))

    def condition(self, region: Region) -> str | None:
        """The buffer of the flag without which the region need not run: the arrays that it would change have what it is to leave there."""
        made, inputs = {t.name for t in region.outputs}, {t.name for t in region.inputs}
        flags: dict[str, None] = {}
        for op in region.ops:
            if isinstance(op, Equation) and op.result.name not in made:
                continue
            if not isinstance(op, Equation) or op.only_if is None or op.base is None or op.base.name not in inputs:
                return None
            if self.storage[op.base.name] != self.storage[op.result.name]:
                return None
            flags[op.only_if.name] = None
        # None where all that it makes is seen by nobody.
        (flag,) = flags if len(flags) == 1 else ("",)
        return self.buffer_of(self.storage[flag]) if flag in inputs else None

    def finish(self, storage: Mapping[str, str]) -> Plan:
        return Plan(
            buffers=self.buffers,
            steps=tuple(_with_frees(self.steps, self.buffers)),
            inputs=self.inputs,
            outputs=self.outputs,
            storage=storage,
        )


def _with_frees(steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> list[Step]:
    """A Free behind the last step that uses each temporary, whichever arrays it held."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        match step:
            case Launch():
                last.update((a.buffer, position) for a in step.arguments)
            case CheckFlag() | Allocate() | Free():
                last[step.buffer] = position
    result: list[Step] = []
    for position, step in enumerate(steps):
        result.append(step)
        result += [Free(b) for b, p in last.items() if p == position and buffers[b].kind == "temporary"]
    return result


def _constant_bytes(dtype: DType, shape: Sequence[Affine]) -> int | None:
    total = dtype.itemsize
    for extent in shape:
        if not extent.is_constant:
            return None
        total *= extent.constant
    return total

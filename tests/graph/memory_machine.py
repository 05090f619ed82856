"""Runs a planned graph in shared memory, op by op: what storage sharing would clobber becomes a wrong number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyml.graph.ir import Carried, Check, Equation, Graph, Loop, Op
from polyml.graph.plan import Allocate, CheckFlag, Free, Launch, Plan
from polyml.graph.reference import execute_equation
from polyml.graph.region import Region
from polyml.graph.traverse import read_names


def run_plan(graph: Graph, regions: Sequence[Region], plan: Plan, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs; written inputs are updated in `arguments`."""
    memory = dict(zip(plan.inputs, arguments, strict=True))
    tensors_left: set[str] = set()
    for step in plan.steps:
        match step:
            case Allocate():
                assert step.buffer not in memory, f"{step.buffer} is allocated twice"
                tensors_left.add(step.buffer)
                memory[step.buffer] = np.full(step.bytes, 0xA5, np.uint8)
            case Free():
                tensors_left.remove(step.buffer)
                del memory[step.buffer]
            case CheckFlag():
                if memory[step.buffer].reshape(-1).view(np.bool_)[0]:
                    raise IndexError(step.message)
            case Launch():
                _launch(graph, regions[step.region], plan, step, memory)
    assert not tensors_left, "temporaries leak"
    return [memory[name] for name in plan.outputs]


def _launch(graph: Graph, region: Region, plan: Plan, step: Launch, memory: dict[str, np.ndarray]) -> None:
    buffers = [a.buffer for a in step.arguments]
    assert len(set(buffers)) == len(buffers), "one buffer for two arrays of a region"
    arrays: dict[str, np.ndarray] = {}
    shapes = {plan.storage[t.name]: t for t in (*region.inputs, *region.outputs)}
    for argument in step.arguments:
        tensor = shapes[argument.array]
        shape = tuple(e.constant for e in tensor.shape)
        if plan.buffers[argument.buffer].kind == "output" and argument.buffer not in memory:
            memory[argument.buffer] = np.full(shape, 77, tensor.dtype.numpy)
        raw = memory[argument.buffer]
        if plan.buffers[argument.buffer].kind == "temporary":
            size = int(np.prod(shape)) * tensor.dtype.itemsize
            raw = raw[:size].view(tensor.dtype.numpy).reshape(shape)
        arrays[argument.array] = raw
    _Machine(plan.storage, arrays).run(region.ops, {})


class _Machine:
    def __init__(self, storage: Mapping[str, str], arrays: dict[str, np.ndarray]) -> None:
        self.storage, self.arrays = storage, arrays

    def run(self, ops: Sequence[Op], numbers: Mapping[str, int]) -> None:
        for op in ops:
            match op:
                case Equation():
                    values = {name: self.arrays[self.storage[name]] for name in read_names(op)}
                    self.store(op.result.name, execute_equation(op, values, numbers))
                case Loop():
                    for carried in op.carried:
                        self.copy(carried.initial.name, carried.inner.name)
                    for value in range(op.start.evaluate(numbers), op.stop.evaluate(numbers), op.step):
                        self.run(op.body, {**numbers, op.variable: value})
                        self.close(op.carried)
                    for carried in op.carried:
                        self.copy(carried.inner.name, carried.result.name)
                case Check():
                    raise AssertionError("a check inside a region")

    def close(self, carried: Sequence[Carried]) -> None:
        for item in carried:
            self.copy(item.next.name, item.inner.name)

    def copy(self, source: str, target: str) -> None:
        if self.storage[source] != self.storage[target]:
            self.store(target, self.arrays[self.storage[source]].copy())

    def store(self, name: str, value: np.ndarray) -> None:
        array = self.arrays.get(self.storage[name])
        if array is None:
            self.arrays[self.storage[name]] = value.copy()
        else:
            array[...] = value

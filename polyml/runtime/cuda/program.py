"""A compiled program for a GPU: the Plan's steps and the regions' host programs, run against a device.

Arrays go to the device contiguous, and come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyml.codegen.cuda.limits import require_fits
from polyml.codegen.cuda.program import Branch, CudaRegion, HostStep, Kernel, Launch, Repeat, grid_of
from polyml.codegen.loops import Variable
from polyml.errors import SubscriptError
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.graph.host_steps import Allocate, CheckFlag, Free, Plan
from polyml.graph.host_steps import Launch as LaunchRegion
from polyml.ops import OPS
from polyml.records import dataclass
from polyml.runtime.arguments import Array, Prepared, Wanted
from polyml.runtime.cuda.device import CudaCode, Device, Queue
from polyml.runtime.cuda.memory import STREAMS, Memory
from polyml.runtime.kernel import Kernel as CompiledKernel
from polyml.runtime.signature import ArrayParameter, KernelSignature

__all__ = ["CudaKernel", "Resident", "value_of"]


class CudaKernel(CompiledKernel):
    """Compiled code for one signature, on a GPU. Called like any Kernel."""

    __slots__ = ("cuda", "device", "module", "program", "regions")

    def __init__(
        self, signature: KernelSignature, plan: Plan, regions: tuple[CudaRegion, ...], code: CudaCode, device: Device
    ) -> None:
        super().__init__(signature)
        require_fits(code.kernels, device.limits, where="the device")
        self.cuda, self.device, self.regions = code, device, regions
        self.module = device.load(code)
        self.program = plan

    @property
    def plan(self) -> str:
        """The host program: what is allocated, launched and checked, in order."""
        return str(self.program)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in call order."""
        return tuple(parameter.name for parameter in self.signature.parameters)

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """What each parameter takes."""
        return self._wanted

    @property
    def written(self) -> tuple[bool, ...]:
        """Which parameters are updated."""
        return tuple(isinstance(p, ArrayParameter) and p.written for p in self.signature.parameters)

    def results_of(self, prepared: Sequence[Prepared]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and element types of the new results for these arguments."""
        sizes = self._sizes(prepared)
        return [
            (tuple(extent.evaluate(sizes) for extent in result.shape), result.dtype.numpy)
            for result in self.signature.results
        ]

    def execute(self, arguments: Sequence[Prepared], results: Sequence[Array], sizes: Mapping[str, int]) -> None:
        """Copies in, runs the plan, copies out.

        Raises:
            SubscriptError: an index check failed. MemoryError.
        """
        with self.resident([a.value for a in arguments if isinstance(a.value, np.ndarray)], results, sizes) as run:
            run()
            run.fetch()

    def resident(self, arguments: Sequence[Array], results: Sequence[Array], sizes: Mapping[str, int]) -> Resident:
        """The program with its arguments on the device, to run it as often as one likes."""
        return Resident(self, arguments, results, sizes)


class Resident:
    """A program's arguments and results on the device, from `with` on. Called it runs; `fetch` copies results and updated arguments to the host arrays.

    Arrays that are device memory already (see polyml.runtime.foreign.device_arrays) are used where they are.
    """

    def __init__(
        self, kernel: CudaKernel, arguments: Sequence[Array], results: Sequence[Array], sizes: Mapping[str, int]
    ) -> None:
        self.kernel, self.sizes = kernel, dict(sizes)
        self.arguments = tuple(zip(kernel.signature.buffers, arguments, strict=True))
        self.results = tuple(zip(kernel.signature.results, results, strict=True))
        self.queue = kernel.device.queue(STREAMS.get())
        self.memory = Memory(self.queue)

    def __enter__(self) -> Resident:
        try:
            for parameter, value in self.arguments:
                self.memory.put(parameter.name, value)
            for result, array in self.results:
                self.memory.room(result.name, array)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.memory.release()
        self.queue.close()

    def __call__(self) -> None:
        """Runs the plan.

        Raises:
            SubscriptError: an index check failed. MemoryError.
        """
        _Run(self.kernel, self.queue, self.memory, dict(self.sizes)).plan()

    def fetch(self) -> None:
        for parameter, value in self.arguments:
            if isinstance(parameter, ArrayParameter) and parameter.written:
                self.memory.get(parameter.name, value)
        for result, array in self.results:
            self.memory.get(result.name, array)


@dataclass(slots=True)
class _Run:
    """One call. sizes: of the program, and the variables of the host loops that it is in."""

    kernel: CudaKernel
    queue: Queue
    memory: Memory
    sizes: dict[str, int]

    def plan(self) -> None:
        plan, checks = self.kernel.program, 0
        for step in plan.steps:
            match step:
                case Allocate(buffer=buffer):
                    self.memory.allocate(buffer, plan.buffers[buffer].size_in_bytes(self.sizes))
                case LaunchRegion():
                    arguments = {a.array: self.memory.addresses[a.buffer] for a in step.arguments}
                    self.region(self.kernel.regions[step.region], arguments)
                case CheckFlag(buffer=buffer, message=message):
                    checks += 1
                    flag = np.zeros(1, np.bool_)
                    self.queue.to_host(flag, self.memory.addresses[buffer])
                    if flag[0]:
                        raise SubscriptError(message)
                case Free(buffer=buffer):
                    self.memory.free(buffer)

    def region(self, region: CudaRegion, arguments: dict[str, int]) -> None:
        names = [f"{region.name} {array.variable.name}" for array in region.scratch]
        for name, array in zip(names, region.scratch, strict=True):
            arguments[array.variable.name] = self.memory.allocate(name, self.bytes(array.variable))
        self.steps(region, region.steps, arguments)
        for name in names:
            self.memory.free(name)

    def bytes(self, variable: Variable) -> int:
        total = variable.dtype.itemsize
        for extent in variable.shape:
            total *= extent.evaluate(self.sizes)
        return total

    def steps(self, region: CudaRegion, steps: Sequence[HostStep], arguments: Mapping[str, int]) -> None:
        for step in steps:
            match step:
                case Launch(kernel=number):
                    self.launch(region.kernels[number], arguments)
                case Repeat():
                    for value in range(step.lower.evaluate(self.sizes), step.upper.evaluate(self.sizes), step.step):
                        self.sizes[step.variable] = value
                        self.steps(region, step.body, arguments)
                    self.sizes.pop(step.variable, None)
                case Branch():
                    holds = bool(value_of(step.condition, self.sizes))
                    self.steps(region, step.then if holds else step.otherwise, arguments)

    def launch(self, kernel: Kernel, arguments: Mapping[str, int]) -> None:
        sizes = {name: self.sizes[name] for name in kernel.function.sizes}
        grid = grid_of(kernel, sizes, self.kernel.device.limits.grid)
        if grid is None:
            return
        pointers = [arguments[variable.name] for variable in kernel.function.arguments]
        self.queue.launch(self.kernel.module, kernel.name, grid, kernel.threads, pointers, list(sizes.values()))


def value_of(expr: Expr, sizes: Mapping[str, int]) -> object:
    """A condition over sizes and host loop variables."""
    match expr:
        case Const():
            return expr.value
        case IndexValue():
            return expr.affine.evaluate(sizes)
        case Apply(op="select"):
            return value_of(expr.args[1 if value_of(expr.args[0], sizes) else 2], sizes)
        case Apply():
            return OPS[expr.op].meaning(*(value_of(arg, sizes) for arg in expr.args))
        case _:
            raise AssertionError("internal: the host reads no array")

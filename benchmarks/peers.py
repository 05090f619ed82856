"""The libraries that polyml is measured beside: each a way to compute one case, made when it is called first.

What is installed takes part: torch as it is and compiled, JAX, onnxruntime, OpenVINO (which converts the torch function), opt_einsum, numba (extra `bench`).
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Formulation", "Runner", "first_calls", "peers_of"]

Array = NDArray[np.generic]
Runner = Callable[[], Any]
"""Computes the case; an array of the result's elements, perhaps with further dimensions of extent 1."""


_NEEDS = {"openvino": "torch", "onnxruntime": "onnx"}
"""What makes the model that a library runs."""


@dataclass(frozen=True, slots=True)
class Formulation:
    """A case as other libraries' users would write it, each None where nothing of the kind is worth a comparison.

    torch, jax: the text of a function of the arguments; `torch`, and `jax` and `jnp`, are there. onnx: makes a graph's nodes with inputs i0, i1, ... (`axes` is the
    constant [1]) and output y. numba: the text of a module that has the function `run`, with `njit`, `prange` and `np` there. opt_einsum: subscripts.
    compiled: whether torch.compile could change anything.
    """

    torch: str | None = None
    jax: str | None = None
    onnx: Callable[[], list[object]] | None = None
    numba: str | None = None
    opt_einsum: str | None = None
    compiled: bool = True


@dataclass(frozen=True, slots=True)
class Inputs:
    """constants: positions of the arguments that never change, such as a layer's weights."""

    arguments: tuple[Array, ...]
    constants: Collection[int]
    threads: int

    @property
    def free(self) -> list[int]:
        return [k for k in range(len(self.arguments)) if k not in self.constants]

    def closed(self, function: Callable[..., Any], values: Sequence[Any]) -> Callable[..., Any]:
        """The function of the arguments that change, with the constants among `values` in their places."""
        names = [f"a{k}" for k in range(len(values))]
        changing = ", ".join(names[k] for k in self.free)
        scope = {"function": function, **{names[k]: values[k] for k in self.constants}}
        made: Callable[..., Any] = eval(f"lambda {changing}: function({', '.join(names)})", scope)
        return made


@dataclass(slots=True)
class _Once:
    """A contender that is made at its first call, which counts as compilation."""

    make: Callable[[], Runner]
    run: Runner | None = field(default=None)

    def __call__(self) -> Any:
        if self.run is None:
            self.run = self.make()
        return self.run()


def peers_of(
    case: Formulation,
    arguments: tuple[Array, ...],
    *,
    threads: int,
    constants: Collection[int] = (),
    wanted: Collection[str] = (),
) -> dict[str, Runner]:
    """The installed libraries that can compute the case, by name. wanted: only these, where any are named."""
    given = Inputs(arguments, constants, threads)
    makers: dict[str, tuple[str, Callable[[], Runner]]] = {}
    if (text := case.torch) is not None:
        makers["torch"] = "torch", lambda: _torch(text, given)
        if case.compiled:
            makers["torch.compile"] = "torch", lambda: _torch(text, given, compiled=True)
        makers["openvino"] = "openvino", lambda: _openvino(text, given)
    if (function := case.jax) is not None:
        makers["jax"] = "jax", lambda: _jax(function, given)
    if (nodes := case.onnx) is not None and all(a.dtype == np.float32 for a in arguments):
        makers["onnxruntime"] = "onnxruntime", lambda: _onnxruntime(nodes, given)
    if (module := case.numba) is not None:
        makers["numba"] = "numba", lambda: _numba(module, given)
    if (subscripts := case.opt_einsum) is not None:
        makers["opt_einsum"] = "opt_einsum", lambda: _opt_einsum(subscripts, given)
    return {
        name: _Once(make)
        for name, (package, make) in makers.items()
        if (not wanted or name in wanted) and _installed(package) and _installed(_NEEDS.get(name, package))
    }


def first_calls(runs: dict[str, Runner], clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each contender's first call, compilation included. A peer that cannot do the case is taken out of `runs`, with a note."""
    found = {}
    for name, run in list(runs.items()):
        start = clock()
        try:
            run()
        except Exception as fault:
            if name == "polyml":
                raise
            print(
                f"    {name} cannot: {type(fault).__name__}: {str(fault).strip().splitlines()[0][:100] if str(fault) else ''}"
            )
            del runs[name]
        else:
            found[name] = clock() - start
    return found


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _torch(text: str, given: Inputs, *, compiled: bool = False) -> Runner:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(given.threads)
    tensors = [torch.from_numpy(a) for a in given.arguments]
    call = given.closed(eval(text, {"torch": torch}), tensors)
    if compiled:
        torch.compiler.reset()  # each case is a program of its own
        call = torch.compile(call)
    changing = [tensors[k] for k in given.free]

    def run() -> Any:
        with torch.inference_mode():
            return call(*changing).numpy()

    return run


def _openvino(text: str, given: Inputs) -> Runner:
    openvino: Any = importlib.import_module("openvino")
    torch: Any = importlib.import_module("torch")
    tensors = [torch.from_numpy(a) for a in given.arguments]
    call = given.closed(eval(text, {"torch": torch}), tensors)

    class Module(torch.nn.Module):  # type: ignore[misc]  # a class of Any
        def forward(self, *changing: object) -> Any:
            return call(*changing)

    with _quiet():
        model = openvino.convert_model(Module(), example_input=tuple(tensors[k] for k in given.free))
    model.reshape({place: list(given.arguments[k].shape) for place, k in enumerate(given.free)})
    settings = {"INFERENCE_NUM_THREADS": given.threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    changing = [given.arguments[k] for k in given.free]
    return lambda: request.infer(changing, share_inputs=True, share_outputs=True)[0]


def _jax(text: str, given: Inputs) -> Runner:
    """benchmarks/command_line.py keeps its pool to the threads that are asked for."""
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    arrays = [jax.numpy.asarray(a) for a in given.arguments]
    call = jax.jit(given.closed(eval(text, {"jax": jax, "jnp": jax.numpy}), arrays))
    changing = [arrays[k] for k in given.free]
    return lambda: np.asarray(call(*changing).block_until_ready())


def _onnxruntime(make: Callable[[], list[object]], given: Inputs) -> Runner:
    runtime: Any = importlib.import_module("onnxruntime")
    onnx: Any = importlib.import_module("onnx")
    kind = onnx.TensorProto.FLOAT
    names = [f"i{k}" for k in range(len(given.arguments))]
    inputs = [onnx.helper.make_tensor_value_info(names[k], kind, given.arguments[k].shape) for k in given.free]
    constants = [onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])]
    constants += [
        onnx.numpy_helper.from_array(np.ascontiguousarray(given.arguments[k]), names[k]) for k in given.constants
    ]
    output = onnx.helper.make_tensor_value_info("y", kind, None)
    graph = onnx.helper.make_graph(make(), "case", inputs, [output], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = given.threads
    settings.log_severity_level = 3  # errors
    session = runtime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    feed = {names[k]: given.arguments[k] for k in given.free}
    return lambda: session.run(None, feed)[0]


def _numba(text: str, given: Inputs) -> Runner:
    numba: Any = importlib.import_module("numba")
    module = {"njit": numba.njit(fastmath=True, parallel=given.threads > 1), "prange": numba.prange, "np": np}
    exec(text, module)
    return lambda: module["run"](*given.arguments)


def _opt_einsum(subscripts: str, given: Inputs) -> Runner:
    contract: Any = importlib.import_module("opt_einsum").contract
    return lambda: contract(subscripts, *given.arguments)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of a tracer."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

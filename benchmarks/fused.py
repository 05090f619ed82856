"""Fused kernels against NumPy (and torch and onnxruntime where installed), interleaved in one run, medians.

    python -m benchmarks.fused [--threads N] [--clock cpu] [--only NAME,...] [--csv FILE]

Every contender's result is checked against NumPy in float64 first. Only ratios of one run mean anything: `limit` is the time in which memory moves the case's inputs and result
once, measured as one more contender (benchmarks/limits.py), or in which its operations take at the FMA peak, whichever is longer; `x limit` are multiples of it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from benchmarks.command_line import clock_of, timing_options, with_threads, write_csv
from benchmarks.fused_cases import CASES, Array, Case
from benchmarks.limits import Stream, seconds_at_peak
from polyml.demo.measure import interleaved

if TYPE_CHECKING:
    from polyml.api import Einsum

Runner = Callable[[], Array]


def contenders(case: Case, arguments: tuple[Array, ...], threads: int) -> dict[str, Runner]:
    import polyml

    found: dict[str, Runner] = {"numpy": functools.partial(case.numpy, *arguments)}
    found["polyml"] = _polyml(polyml.einsum(case.text), case.constants.split(), arguments)
    if case.torch is not None and (run := torch_runner(case.torch, arguments, threads)) is not None:
        found["torch"] = run
    if case.onnx is not None and (run := onnx_runner(case.onnx, arguments, threads)) is not None:
        found["onnxruntime"] = run
    return found


def _polyml(program: Einsum, constants: Sequence[str], arguments: tuple[Array, ...]) -> Runner:
    """A call with the constants bound."""
    if not constants:
        return functools.partial(program, *arguments)
    given = dict(zip((p.name for p in program.program.parameters), arguments, strict=True))
    layer = program.bind(**{name: given.pop(name) for name in constants})
    return functools.partial(layer, *given.values())


def torch_runner(text: str, arguments: tuple[Array, ...], threads: int) -> Runner | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    function = eval(text, {"torch": torch})
    tensors = [torch.from_numpy(a) for a in arguments]

    def run() -> Array:
        with torch.inference_mode():
            result: Array = function(*tensors).numpy()
        return result

    return run


def onnx_runner(make: Callable[[], list[object]], arguments: tuple[Array, ...], threads: int) -> Runner | None:
    try:
        import onnxruntime
        from onnx import TensorProto, helper
    except ImportError:
        return None
    nodes = make()
    inputs = [helper.make_tensor_value_info(f"i{k}", TensorProto.FLOAT, a.shape) for k, a in enumerate(arguments)]
    constants = [helper.make_tensor("axes", TensorProto.INT64, [1], [1])]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "case", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    feed = {f"i{k}": a for k, a in enumerate(arguments)}
    return lambda: session.run(None, feed)[0]


def main(cases: Sequence[Case], description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    timing_options(parser, seconds=2.0)
    options = parser.parse_args()
    clock = clock_of(parser, options)
    names = [n for n in options.only.split(",") if n]
    rows: list[dict[str, object]] = []
    print(
        f"{'case':<22}{'contender':<14}{'ms':>9}{'x limit':>9}{'ratio':>8}{'max error':>11}   (ratio: its time over polyml's)"
    )
    for case in cases:
        if names and case.name not in names:
            continue
        arguments = case.arguments(np.random.default_rng(0))
        exact = case.numpy(*(a.astype(np.float64) for a in arguments))
        runs = contenders(case, arguments, options.threads)
        start = time.perf_counter()
        runs["polyml"]()
        cold = time.perf_counter() - start
        settle = 0.2 if options.threads > 1 else 0.0
        stream = Stream(arguments, runs["polyml"]())
        turns = {**runs, "limit": stream.run}
        times = interleaved(turns, seconds=options.seconds, least=7, settle=settle, clock=clock)
        limit = max(stream.of_the_case(times["limit"]), seconds_at_peak(case.flops, options.threads))
        print(f"{case.name:<22}{'(limit)':<14}{1e3 * limit:>9.3f}")
        for name, run in runs.items():
            result = run()
            error = (
                float(np.mean(result != exact)) if result.dtype.kind == "i" else float(np.max(np.abs(result - exact)))
            )
            ratio = times[name] / times["polyml"]
            note = f"   first call {1e3 * cold:.0f} ms" if name == "polyml" else ""
            print(
                f"{case.name:<22}{name:<14}{1e3 * times[name]:>9.3f}{times[name] / limit:>9.2f}{ratio:>8.2f}{error:>11.1e}{note}"
            )
            sys.stdout.flush()
            rows.append(
                {
                    "case": case.name,
                    "threads": options.threads,
                    "contender": name,
                    "seconds": times[name],
                    "cold_s": cold,
                    "times_limit": times[name] / limit,
                    "error": error,
                }
            )
    write_csv(options.csv, rows)
    return 0


def start(cases: Sequence[Case], module: str, description: str | None) -> NoReturn:
    """Runs the command line of a module, in a process whose thread pools have as many threads as it asks for."""
    with_threads(module)
    raise SystemExit(main(cases, description))


if __name__ == "__main__":
    start(CASES, "benchmarks.fused", __doc__)

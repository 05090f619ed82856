"""Fused kernels against NumPy (and torch and onnxruntime where installed), interleaved in one run, medians.

    python -m benchmarks.fused [--threads N] [--clock cpu] [--only NAME,...] [--csv FILE]

Every contender's result is checked against NumPy in float64 first. Only ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyml.demo.measure import interleaved
from polyml.demo.showcase import SHOWCASES

Array = NDArray[np.generic]
Runner = Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Case:
    """text: the einsum program. arguments: its f32 inputs. numpy: NumPy's best formulation. torch: a function of torch tensors, or None.
    onnx: makes the nodes of an onnx graph with inputs i0, i1, ... and output y, or None."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Array, ...]]
    numpy: Callable[..., Array]
    torch: str | None = None
    onnx: Callable[[], list[object]] | None = None


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def onnx_nodes(*rows: tuple[str, list[str], str, dict[str, object]]) -> list[object]:
    from onnx import helper

    return [helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes in rows]


def logsumexp(x: Array) -> Array:
    m = x.max(axis=1)
    e = np.exp(x - m[:, None])
    return m + np.log(e.sum(axis=1))


def erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26 (error 1.5e-7), the usual NumPy-only formulation; SciPy's where it is installed."""
    try:
        from scipy.special import erf as exact
    except ImportError:
        t = 1 / (1 + 0.3275911 * np.abs(x))
        tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        return np.sign(x) * (1 - tail * np.exp(-x * x))
    return exact(x)


def gelu_dense(x: Array, w: Array, b: Array) -> Array:
    z = x @ w
    z += b
    half, root = np.asarray(0.5, z.dtype), np.asarray(np.sqrt(0.5), z.dtype)
    return half * z * (1 + erf(z * root)).astype(z.dtype)


def distances(x: Array, y: Array) -> Array:
    d = x @ y.T
    d *= -2
    d += (x * x).sum(axis=1)[:, None]
    d += (y * y).sum(axis=1)[None, :]
    return d


SHOWN = {case.name: case for case in SHOWCASES}


def shown(name: str, torch: str | None = None, onnx: Callable[[], list[object]] | None = None) -> Case:
    case = SHOWN[name]
    return Case(name, case.text, case.arguments, case.numpy, torch, onnx)


CASES: tuple[Case, ...] = (
    shown(
        "softmax",
        "lambda x: torch.softmax(x, 1)",
        lambda: onnx_nodes(("Softmax", ["i0"], "y", {"axis": 1})),
    ),
    shown(
        "layer norm",
        "lambda x, g, b: torch.nn.functional.layer_norm(x, (x.shape[1],), g, b)",
        lambda: onnx_nodes(("LayerNormalization", ["i0", "i1", "i2"], "y", {"axis": 1, "epsilon": 1e-5})),
    ),
    Case(
        "logsumexp",
        """
def lse(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    y[n] = log(sum[k](exp(x[n, k] - m[n]))) + m[n]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024),),
        logsumexp,
        "lambda x: torch.logsumexp(x, 1)",
        lambda: onnx_nodes(("ReduceLogSumExp", ["i0", "axes"], "y", {"keepdims": 0})),
    ),
    Case(
        "gelu(x @ w + b)",
        """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = gelu(x[n, k] * w[k, m] + b[m])
    return y
""",
        lambda rng: (normal(rng, 1024, 512), normal(rng, 512, 1024), normal(rng, 1024)),
        gelu_dense,
        "lambda x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w))",
    ),
    shown("attention", "lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)"),
    Case(
        "pairwise distances",
        """
def distances(x: f32["N K"], y: f32["M K"]):
    d[n, m] = sum[k]((x[n, k] - y[m, k])**2)
    return d
""",
        lambda rng: (normal(rng, 4096, 16), normal(rng, 4096, 16)),
        distances,
        "lambda x, y: torch.cdist(x, y).square_()",
    ),
    shown("Jacobi sweeps"),
    shown("k-means assignment"),
    shown("padded convolution", "lambda x, f: torch.nn.functional.conv2d(x, f, padding=1)"),
)


def contenders(case: Case, arguments: tuple[Array, ...], threads: int) -> dict[str, Runner]:
    import polyml

    found: dict[str, Runner] = {"numpy": functools.partial(case.numpy, *arguments)}
    found["polyml"] = functools.partial(polyml.einsum(case.text), *arguments)
    if case.torch is not None and (run := torch_runner(case.torch, arguments, threads)) is not None:
        found["torch"] = run
    if case.onnx is not None and (run := onnx_runner(case.onnx, arguments, threads)) is not None:
        found["onnxruntime"] = run
    return found


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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    feed = {f"i{k}": a for k, a in enumerate(arguments)}
    return lambda: session.run(None, feed)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names, comma-separated")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: of the calling thread, where others use the machine",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="per case")
    parser.add_argument("--csv", default=None)
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu sees one thread only")
    clock = time.thread_time if options.clock == "cpu" else time.perf_counter
    names = [n for n in options.only.split(",") if n]
    rows: list[dict[str, object]] = []
    print(f"{'case':<22}{'contender':<14}{'ms':>9}{'ratio':>8}{'max error':>11}   (ratio: its time over polyml's)")
    for case in CASES:
        if names and case.name not in names:
            continue
        arguments = case.arguments(np.random.default_rng(0))
        exact = case.numpy(*(a.astype(np.float64) for a in arguments))
        runs = contenders(case, arguments, options.threads)
        start = time.perf_counter()
        runs["polyml"]()
        cold = time.perf_counter() - start
        settle = 0.2 if options.threads > 1 else 0.0
        times = interleaved(runs, seconds=options.seconds, least=7, settle=settle, clock=clock)
        for name, run in runs.items():
            result = run()
            error = (
                float(np.mean(result != exact)) if result.dtype.kind == "i" else float(np.max(np.abs(result - exact)))
            )
            ratio = times[name] / times["polyml"]
            note = f"   first call {1e3 * cold:.0f} ms" if name == "polyml" else ""
            print(f"{case.name:<22}{name:<14}{1e3 * times[name]:>9.3f}{ratio:>8.2f}{error:>11.1e}{note}")
            sys.stdout.flush()
            rows.append(
                {
                    "case": case.name,
                    "threads": options.threads,
                    "contender": name,
                    "seconds": times[name],
                    "cold_s": cold,
                    "error": error,
                }
            )
    if options.csv:
        with open(options.csv, "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    # Thread pools read these when their library loads: before NumPy does its first product.
    wanted = str(next((sys.argv[k + 1] for k, a in enumerate(sys.argv[:-1]) if a == "--threads"), "1"))
    if os.environ.get("OPENBLAS_NUM_THREADS") != wanted:
        os.environ.update(OPENBLAS_NUM_THREADS=wanted, OMP_NUM_THREADS=wanted, POLYML_NUM_THREADS=wanted)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.fused", *sys.argv[1:]])
    raise SystemExit(main())

"""Convolutions at batch 1, weights constant, against torch and onnxruntime where installed, interleaved in one run, medians.

    python -m benchmarks.convolutions [--cases FILE.csv] [--only NAME,...] [--dtype float32] [--threads N] [--clock cpu] [--csv FILE]

The cases of data/convolutions.csv are all distinct convolutions of ResNet-50 (He et al., 2016; strides in the 3x3 layers, as torchvision has them) and of MobileNet-v1
(Howard et al., 2017), NCHW. A file of your own needs the same columns: name, channels, height, width, filters, kernel, stride, padding, groups (1, or as many as channels).
polyml's weights are bound, onnxruntime's are initializers. Every result is checked against NumPy in float64; the FMA peak is measured in turns with the contenders.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.command_line import clock_of, timing_options, with_threads, write_csv
from benchmarks.contractions import Array, Runner, in_turns, line

CASES = Path(__file__).parent / "data" / "convolutions.csv"


@dataclass(frozen=True, slots=True)
class Convolution:
    """One layer: square kernels, the same stride and padding in both directions; groups: 1, or depthwise."""

    name: str
    channels: int
    height: int
    width: int
    filters: int
    kernel: int
    stride: int
    padding: int
    groups: int
    dtype: str = "float32"

    @property
    def depthwise(self) -> bool:
        return self.groups > 1

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of input, weights and output."""
        window = (self.kernel, self.kernel)
        weights = (self.channels, *window) if self.depthwise else (self.filters, self.channels, *window)
        high, wide = ((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in (self.height, self.width))
        return (self.channels, self.height, self.width), weights, (self.filters, high, wide)

    @property
    def flops(self) -> float:
        _, weights, (_, high, wide) = self.shapes()
        return 2.0 * float(np.prod(weights)) * high * wide

    def limit(self, peak: float, bandwidth: float) -> float:
        """Seconds that no program beats: the FMA peak (all tensors fit in caches)."""
        return self.flops / peak

    def program(self) -> str:
        """The polyml program."""
        kind = {"float32": "f32", "float64": "f64"}[self.dtype]
        scale = f"{self.stride}*" if self.stride > 1 else ""
        edge = f"({self.padding}, {self.padding})"
        source = f"pad(x, ((0, 0), {edge}, {edge}))" if self.padding else "x"
        window = ("", "") if self.kernel == 1 else (" + r", " + s")
        places = f"{scale}p{window[0]}, {scale}q{window[1]}"
        taps, axes = ("", "") if self.kernel == 1 else (", r, s", " R S")
        if self.depthwise:
            weights, term = f"C{axes}", f"y[c, p, q] = {source}[c, {places}] * w[c{taps}]"
        else:
            weights, term = f"O C{axes}", f"y[o, p, q] = {source}[c, {places}] * w[o, c{taps}]"
        return f'def convolution(x: {kind}["C H W"], w: {kind}["{weights}"]):\n    {term}\n    return y\n'


def read_cases(path: Path, dtype: str) -> Iterator[Convolution]:
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            numbers = {key: int(value) for key, value in row.items() if key != "name"}
            yield Convolution(name=row["name"], dtype=dtype, **numbers)


def exact(case: Convolution, x: Array, w: Array) -> Array:
    """In float64, a product of windows and weights."""
    edge = (case.padding, case.padding)
    padded = np.pad(x.astype(np.float64), ((0, 0), edge, edge))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (case.kernel, case.kernel), (1, 2))
    windows = windows[:, :: case.stride, :: case.stride]
    if case.depthwise:
        return np.einsum("cpqrs,crs->cpq", windows, w.astype(np.float64))
    return np.tensordot(w.astype(np.float64), windows, ([1, 2, 3], [0, 3, 4]))


def contenders(case: Convolution, x: Array, w: Array, threads: int) -> dict[str, Runner]:
    import polyml

    weights = w.reshape(w.shape[:-2]) if case.kernel == 1 else w
    layer = polyml.einsum(case.program()).bind(w=weights)
    found: dict[str, Runner] = {"polyml": lambda: layer(x)}
    filters = w[:, None] if case.depthwise else w
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(threads)
        batch, kernels = torch.from_numpy(x)[None], torch.from_numpy(np.ascontiguousarray(filters))

        def run_torch() -> Array:
            with torch.inference_mode():
                made: Array = torch.conv2d(
                    batch, kernels, None, (case.stride,) * 2, (case.padding,) * 2, (1, 1), case.groups
                ).numpy()[0]
            return made

        found["torch"] = run_torch
    run = onnx_runner(case, x, filters, threads)
    if run is not None:
        found["onnxruntime"] = run
    if len(found) == 1:
        found["numpy"] = lambda: exact(case, x, w).astype(x.dtype)
    return found


def onnx_runner(case: Convolution, x: Array, filters: Array, threads: int) -> Runner | None:
    """onnxruntime with the weights as an initializer, which it packs when the session starts."""
    if case.dtype != "float32":
        return None
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=[case.stride] * 2, pads=[case.padding] * 4, group=case.groups
    )
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, *x.shape))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(np.ascontiguousarray(filters), "w")]
    graph = helper.make_graph([node], "case", [source], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    batch = x[None]
    return lambda: session.run(None, {"x": batch})[0][0]


def report(rows: Sequence[tuple[Convolution, float, float]]) -> None:
    """A line per kind of layer."""
    for kind in ("dense", "depthwise"):
        own = [(ratio, limit) for case, ratio, limit in rows if case.depthwise == (kind == "depthwise")]
        if own:
            ratio, limit = (statistics.geometric_mean(column) for column in zip(*own, strict=True))
            worst = min(value for value, _ in own)
            print(
                f"{kind}: {ratio:.2f} times the best peer (worst {worst:.2f}), {limit:.2f} of the limit, {len(own)} cases"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    timing_options(parser)
    options = parser.parse_args()
    clock = clock_of(parser, options)
    only = tuple(name for name in options.only.split(",") if name)
    rows: list[dict[str, object]] = []
    found: list[tuple[Convolution, float, float]] = []
    print(f"{'case':<26}{'dtype':<9}{'ms':>10}{'gflops':>8}{'limit x':>8}{'ratio':>8}  {'best peer':<12}{'cold ms':>7}")
    for case in read_cases(options.cases, options.dtype):
        if only and not case.name.startswith(only):
            continue
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(shape).astype(case.dtype) for shape in case.shapes()[:2])
        made = in_turns(
            case,
            contenders(case, x, w, options.threads),
            exact(case, x, w),
            threads=options.threads,
            seconds=options.seconds,
            clock=clock,
        )
        text, ratio, limit = line(made)
        print(text)
        sys.stdout.flush()
        rows += made
        found.append((case, ratio, limit))
    report(found)
    write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    with_threads("benchmarks.convolutions")
    raise SystemExit(main())

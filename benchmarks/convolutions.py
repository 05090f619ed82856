"""Convolutions at batch 1, weights constant, against every peer that is installed (benchmarks/peers.py; extra `bench`), interleaved in one run, medians.

    python -m benchmarks.convolutions [--cases FILE.csv] [--only NAME,...] [--dtype float32] [--threads N] [--clock cpu] [--peers NAME,...] [--csv FILE] [--plot FILE]

The cases of data/convolutions.csv are all distinct convolutions of ResNet-50 (He et al., 2016; strides in the 3x3 layers, as torchvision has them) and of MobileNet-v1
(Howard et al., 2017), NCHW. A file of your own needs the same columns: name, channels, height, width, filters, kernel, stride, padding, groups (1, or as many as channels).
Weights are constants for all: polyml's are bound, onnxruntime's initializers. Every result is checked against NumPy in float64; the FMA peak is measured in turns with the contenders.
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

from benchmarks.command_line import clock_of, timing_options, with_threads, write_tables
from benchmarks.contractions import in_turns, line
from benchmarks.peers import Array, Formulation, Runner, peers_of

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


def contenders(case: Convolution, x: Array, w: Array, threads: int, wanted: Sequence[str] = ()) -> dict[str, Runner]:
    """wanted: names of peers; all where none are named. NumPy takes part where no other does."""
    import polyml

    weights = w.reshape(w.shape[:-2]) if case.kernel == 1 else w
    layer = polyml.einsum(case.program()).bind(w=weights)
    found: dict[str, Runner] = {"polyml": lambda: layer(x)}
    stride, edge = (case.stride,) * 2, (case.padding,) * 2
    peers = Formulation(
        torch=f"lambda x, w: torch.conv2d(x, w, None, {stride}, {edge}, (1, 1), {case.groups})",
        jax=f"lambda x, w: jax.lax.conv_general_dilated(x, w, {stride}, {(edge, edge)}, feature_group_count={case.groups})",
        onnx=lambda: _conv(case),
        compiled=False,
    )
    filters = np.ascontiguousarray(w[:, None] if case.depthwise else w)
    found |= peers_of(peers, (x[None], filters), threads=threads, constants=(1,), wanted=wanted)
    if len(found) == 1:
        found["numpy"] = lambda: exact(case, x, w).astype(x.dtype)
    return found


def _conv(case: Convolution) -> list[object]:
    from onnx import helper

    edges = [case.padding] * 4
    return [helper.make_node("Conv", ["i0", "i1"], ["y"], strides=[case.stride] * 2, pads=edges, group=case.groups)]


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
            contenders(case, x, w, options.threads, [name for name in options.peers.split(",") if name]),
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
    write_tables(options, rows, "convolutions")
    return 0


if __name__ == "__main__":
    with_threads("benchmarks.convolutions")
    raise SystemExit(main())

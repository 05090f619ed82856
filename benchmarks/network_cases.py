"""What `python -m benchmarks.networks` measures: networks for images of 224 x 224 (MobileNet v1, v2: Howard et al. 2017, Sandler et al. 2018; ResNet-18, 50: He et al. 2016), a U-Net (Ronneberger et al. 2015) and a GPT-2 (Radford
et al. 2019), each one program, with the same in torch, ONNX and NumPy. Weights are random; those of convolutions contain the scale, and biases the shift, of the batch norm behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.fused_cases import Array, Case, gelu, normal, onnx_nodes
from benchmarks.model_cases import layer_norm

__all__ = ["CASES", "Images"]

_Values = dict[str, Array]


class Images:
    """A network for one image x of `channels` x `size` x `size` while it is put together, layer by layer: methods take and give names of what lies between layers."""

    def __init__(self, size: int, channels: int = 3) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {"x": (1, channels, size, size)}
        self.between: dict[str, tuple[int, int]] = {"x": (channels, size)}
        self.lines: list[str] = []
        self.torch: list[str] = []
        self.onnx: list[tuple[str, list[str], str, dict[str, object]]] = []
        self.numpy: list[Callable[[_Values], None]] = []
        self.flops = 0.0

    def convolution(
        self,
        source: str,
        filters: int,
        kernel: int,
        stride: int = 1,
        *,
        most: float | None = np.inf,
        added: str = "",
        depthwise: bool = False,
    ) -> str:
        """With a bias. most: what its result is at most, beside at least 0; None: no activation. added: what is added ahead of that."""
        channels, size = self.between[source]
        shape = (filters, 1 if depthwise else channels, kernel, kernel)
        w, b = self._weights(*shape), self._weights(filters)
        edge = kernel // 2
        name = self._made(filters, (size + 2 * edge - kernel) // stride + 1)
        self.flops += 2.0 * float(np.prod(shape)) * self.between[name][1] ** 2
        step = f"{stride}*" if stride > 1 else ""
        places = f"{step}h, {step}w" if kernel == 1 else f"{step}h + r, {step}w + s"
        image, channel = self._read(source, edge), "o" if depthwise else "c"
        value = f"{image}{channel}, {places}] * {w}[o, {'0' if depthwise else 'c'}, {'0, 0' if kernel == 1 else 'r, s'}] + {b}[o]"
        value += f" + {added}[o, h, w]" if added else ""
        bounded = "min(" * (most not in (None, np.inf)) + "max(" * (most is not None) + value
        bounded += ", 0)" * (most is not None) + f", {most})" * (most not in (None, np.inf))
        self.lines.append(f"{name}[o, h, w] = {bounded}")
        groups = channels if depthwise else 1
        call = f"torch.conv2d({source}, {w}, {b}, {stride}, {edge}, 1, {groups})" + (f" + {added}" if added else "")
        after = "" if most is None else ".relu()" if most == np.inf else f".clamp(0, {most})"
        self.torch.append(f"{name} := ({call}){after}")
        last = name if most is None and not added else f"{name}_sum"
        place = {"strides": [stride] * 2, "pads": [edge] * 4, "group": groups}
        self.onnx.append(("Conv", [source, w, b], last, place))
        if added:
            last, before = (name if most is None else f"{name}_added"), last
            self.onnx.append(("Add", [before, added], last, {}))
        if most is not None:
            self.onnx.append(
                ("Relu", [last], name, {}) if most == np.inf else ("Clip", [last, "zero", "six"], name, {})
            )

        def run(at: _Values) -> None:
            result = _convolution(at[source], at[w], stride, edge, depthwise=depthwise) + at[b][:, None, None]
            result += at[added] if added else 0
            at[name] = result if most is None else result.clip(0, most)

        self.numpy.append(run)
        return name

    def pooling(self, source: str, kernel: int, stride: int, edge: int) -> str:
        """The largest of each window."""
        channels, size = self.between[source]
        name = self._made(channels, (size + 2 * edge - kernel) // stride + 1)
        image = self._read(source, edge)
        self.lines.append(
            f"{name}[o, h, w] = max[r < {kernel}, s < {kernel}]({image}o, {stride}*h + r, {stride}*w + s])"
        )
        self.torch.append(f"{name} := torch.max_pool2d({source}, {kernel}, {stride}, {edge})")
        self.onnx.append(
            ("MaxPool", [source], name, {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [edge] * 4})
        )

        def run(at: _Values) -> None:
            at[name] = _windows(at[source], kernel, stride, edge).max(axis=(3, 4))  # what goes in is at least 0

        self.numpy.append(run)
        return name

    def doubled(self, source: str) -> str:
        """Each point as four."""
        channels, size = self.between[source]
        name = self._made(channels, 2 * size)
        self.lines += [
            f'{name}: f32["{channels} {2 * size} {2 * size}"]',
            f"{name}[o, h, w] = {source}[o, h // 2, w // 2]",
        ]
        self.torch.append(f"{name} := torch.repeat_interleave(torch.repeat_interleave({source}, 2, 2), 2, 3)")
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        self.onnx.append(("Resize", [source, "", "twice"], name, nearest))

        def run(at: _Values) -> None:
            at[name] = at[source].repeat(2, axis=1).repeat(2, axis=2)

        self.numpy.append(run)
        return name

    def joined(self, first: str, second: str, filters: int) -> str:
        """A convolution of 3 x 3 over the channels of both, and relu."""
        (channels, size), (others, _) = self.between[first], self.between[second]
        w, u, b = self._weights(filters, channels, 3, 3), self._weights(filters, others, 3, 3), self._weights(filters)
        name = self._made(filters, size)
        self.flops += 2.0 * filters * (channels + others) * 9 * size**2
        one, two = self._read(first, 1), self._read(second, 1)
        sums = f"{one}c, h + r, w + s] * {w}[o, c, r, s] + {two}d, h + r, w + s] * {u}[o, d, r, s] + {b}[o]"
        self.lines.append(f"{name}[o, h, w] = relu({sums})")
        self.torch.append(
            f"{name} := torch.relu(torch.conv2d(torch.cat(({first}, {second}), 1), torch.cat(({w}, {u}), 1), {b}, 1, 1))"
        )

        self.onnx += [
            ("Concat", [first, second], f"{name}_both", {"axis": 1}),
            ("Concat", [w, u], f"{name}_weights", {"axis": 1}),
        ]
        self.onnx.append(("Conv", [f"{name}_both", f"{name}_weights", b], f"{name}_sum", {"pads": [1] * 4}))
        self.onnx.append(("Relu", [f"{name}_sum"], name, {}))

        def run(at: _Values) -> None:
            both = np.concatenate((at[first], at[second])), np.concatenate((at[w], at[u]), axis=1)
            at[name] = np.maximum(_convolution(*both, 1, 1, depthwise=False) + at[b][:, None, None], 0)

        self.numpy.append(run)
        return name

    def classes(self, source: str, count: int) -> str:
        """Means of channels, and a layer over them."""
        channels, size = self.between[source]
        w, b = self._weights(count, channels), self._weights(count)
        self.lines += [f"means[c] = {source}[c, h, w] / {size * size}", f"y[m] = means[c] * {w}[m, c] + {b}[m]"]
        self.torch.append(f"y := torch.nn.functional.linear({source}.mean((2, 3)), {w}, {b})")
        self.onnx += [
            ("GlobalAveragePool", [source], "pooled", {}),
            ("Flatten", ["pooled"], "means", {}),
            ("Gemm", ["means", w, b], "y", {"transB": 1}),
        ]

        def run(at: _Values) -> None:
            at["y"] = at[w] @ at[source].mean(axis=(1, 2)) + at[b]

        self.numpy.append(run)
        return "y"

    def case(self, name: str, result: str) -> Case:
        """The network that gives `result`."""
        shapes, parameters = dict(self.shapes), ", ".join(self.shapes)
        types = ", ".join(f'{k}: f32["{" ".join(map(str, shape))}"]' for k, shape in shapes.items())
        body = "\n".join(f"    {line}" for line in self.lines)

        def arguments(rng: np.random.Generator) -> tuple[Array, ...]:
            return tuple(_scaled(normal(rng, *shape)) for shape in shapes.values())

        def reference(*values: Array) -> Array:
            at = dict(zip(shapes, values, strict=True)) | {"x": values[0][0]}
            for step in self.numpy:
                step(at)
            return at[result]

        return Case(
            name, f"def network({types}):\n{body}\n    return {result}\n", arguments, reference,
            torch=f"lambda {parameters}: ({', '.join(f'({step})' for step in self.torch)})[-1]",
            onnx=lambda: self._nodes(result),
            flops=self.flops, constants=" ".join(list(shapes)[1:]),
        )  # fmt: skip

    def _nodes(self, result: str) -> list[object]:
        called = {name: f"i{k}" for k, name in enumerate(self.shapes)} | {result: "y"}
        rows = [
            (op, [called.get(name, name) for name in inputs], called.get(output, output), given)
            for op, inputs, output, given in self.onnx
        ]
        constants = onnx_nodes(
            ("Constant", [], "zero", {"value_float": 0.0}),
            ("Constant", [], "six", {"value_float": 6.0}),
            ("Constant", [], "twice", {"value_floats": [1.0, 1.0, 2.0, 2.0]}),
        )
        return [*constants, *onnx_nodes(*rows)]

    def _weights(self, *shape: int) -> str:
        name = f"{'b' if len(shape) == 1 else 'w'}{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def _made(self, channels: int, size: int) -> str:
        name = f"t{len(self.between)}"
        self.between[name] = channels, size
        return name

    def _read(self, source: str, edge: int) -> str:
        """The text of an access with zeros around, up to its channel."""
        before, first = ("(0, 0), ", "0, ") if source == "x" else ("", "")
        around = f"({edge}, {edge})"
        return f"pad({source}, ({before}(0, 0), {around}, {around}))[{first}" if edge else f"{source}[{first}"


def _scaled(array: Array) -> Array:
    """Weights so that what they multiply keeps its size behind a relu."""
    weights: Array = (
        array * np.float32(np.sqrt(2 / np.prod(array.shape[1:])))
        if array.ndim in (2, 4) and array.shape[0] > 1
        else array
    )
    return weights


def _windows(image: Array, kernel: int, stride: int, edge: int) -> Array:
    """Of shape (channels, rows, columns, kernel, kernel)."""
    padded = np.pad(image, ((0, 0), (edge, edge), (edge, edge)))
    return np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]


def _convolution(image: Array, weights: Array, stride: int, edge: int, *, depthwise: bool) -> Array:
    windows = _windows(image, weights.shape[-1], stride, edge)
    if depthwise:
        return np.einsum("cpqrs,crs->cpq", windows, weights[:, 0])
    return np.tensordot(weights, windows, ([1, 2, 3], [0, 3, 4]))


def mobilenet_v1() -> Case:
    made = Images(224)
    last = made.convolution("x", 32, 3, 2)
    rows = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for filters, stride in rows:
        last = made.convolution(last, made.between[last][0], 3, stride, depthwise=True)
        last = made.convolution(last, filters, 1)
    return made.case("MobileNet v1", made.classes(last, 1000))


def mobilenet_v2() -> Case:
    made = Images(224)
    last = made.convolution("x", 32, 3, 2, most=6)
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for wider, filters, count, first in rows:
        for k in range(count):
            channels, stride = made.between[last][0], first if k == 0 else 1
            inner = made.convolution(last, channels * wider, 1, most=6) if wider > 1 else last
            inner = made.convolution(inner, channels * wider, 3, stride, most=6, depthwise=True)
            last = made.convolution(
                inner, filters, 1, most=None, added=last if stride == 1 and channels == filters else ""
            )
    last = made.convolution(last, 1280, 1, most=6)
    return made.case("MobileNet v2", made.classes(last, 1000))


def resnet(layers: int, blocks: Sequence[int], wider: int) -> Case:
    """wider: 1 for blocks of two 3 x 3 convolutions, 4 for those of one between two of 1 x 1."""
    made = Images(224)
    last = made.pooling(made.convolution("x", 64, 7, 2), 3, 2, 1)
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for k in range(count):
            stride = 2 if k == 0 and stage > 0 else 1
            same = stride == 1 and made.between[last][0] == inner * wider
            beside = last if same else made.convolution(last, inner * wider, 1, stride, most=None)
            first = made.convolution(last, inner, 1) if wider > 1 else last
            second = made.convolution(first, inner, 3, stride)
            last = made.convolution(second, inner * wider, 3 if wider == 1 else 1, added=beside)
    return made.case(f"ResNet-{layers}", made.classes(last, 1000))


def u_net() -> Case:
    made = Images(128)
    last, kept = "x", list[str]()
    for depth in range(4):
        last = made.pooling(kept[-1], 2, 2, 0) if kept else last
        kept.append(made.convolution(made.convolution(last, 16 << depth, 3), 16 << depth, 3))
    last = kept.pop()
    for beside in reversed(kept):
        filters = made.between[beside][0]
        last = made.convolution(made.joined(made.doubled(last), beside, filters), filters, 3)
    return made.case("U-Net", made.convolution(last, 2, 1, most=None))


POSITIONS, WIDTH, HEADS, HEAD, INNER, LAYERS = 64, 768, 12, 64, 3072, 12

GPT = """
def gpt(x: f32["S D"], g: f32["L D"], b: f32["L D"], q: f32["L D H E"], k: f32["L D H E"], v: f32["L D H E"], o: f32["L H E D"], u: f32["L D"], c: f32["L D"], w: f32["L D F"], e: f32["L F"], p: f32["L F D"], d: f32["L D"]):
    h: f32["S D"]
    h[s, i] = x[s, i]
    for l in range(L):
        m[s] = sum[i](h[s, i]) / D
        t[s] = sum[i]((h[s, i] - m[s])**2) / D
        n[s, i] = (h[s, i] - m[s]) * rsqrt(t[s] + 1e-5) * g[l, i] + b[l, i]
        queries[s, a, j] = n[s, i] * q[l, i, a, j]
        keys[s, a, j] = n[s, i] * k[l, i, a, j]
        values[s, a, j] = n[s, i] * v[l, i, a, j]
        scores[a, s, r] = where(r <= s, sum[j](queries[s, a, j] * keys[r, a, j]) / sqrt(E), -inf)
        most[a, s] = max[r](scores[a, s, r])
        shares[a, s, r] = exp(scores[a, s, r] - most[a, s])
        total[a, s] = shares[a, s, r]
        mixed[s, a, j] = sum[r](shares[a, s, r] * values[r, a, j]) / total[a, s]
        h[s, i] = h[s, i] + mixed[s, a, j] * o[l, a, j, i]
        m2[s] = sum[i](h[s, i]) / D
        t2[s] = sum[i]((h[s, i] - m2[s])**2) / D
        n2[s, i] = (h[s, i] - m2[s]) * rsqrt(t2[s] + 1e-5) * u[l, i] + c[l, i]
        f[s, y] = gelu(n2[s, i] * w[l, i, y] + e[l, y])
        h[s, i] = h[s, i] + f[s, y] * p[l, y, i] + d[l, i]
    return h
"""

TORCH_GPT = (
    "lambda x, *weights: [x := (lambda h, g, b, q, k, v, o, u, c, w, e, p, d: (lambda h: h + torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear("
    "torch.nn.functional.layer_norm(h, (768,), u, c), w.T, e)), p.T, d))(h + (lambda n: torch.nn.functional.scaled_dot_product_attention("
    "*((n @ t.reshape(768, 768)).view(1, 64, 12, 64).transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2).reshape(64, 768) @ o.reshape(768, 768))"
    "(torch.nn.functional.layer_norm(h, (768,), g, b))))(x, *(t[l] for t in weights)) for l in range(12)][-1]"
)


def _gpt_arguments(rng: np.random.Generator) -> tuple[Array, ...]:
    def layers(*shape: int) -> Array:
        weights: Array = normal(rng, LAYERS, *shape) * np.float32(0.02 if len(shape) > 1 else 0.1)
        return weights

    attention = *(layers(WIDTH, HEADS, HEAD) for _ in range(3)), layers(HEADS, HEAD, WIDTH)
    dense = layers(WIDTH, INNER), layers(INNER), layers(INNER, WIDTH), layers(WIDTH)
    norms = [layers(WIDTH) for _ in range(4)]
    return normal(rng, POSITIONS, WIDTH), *norms[:2], *attention, *norms[2:], *dense


def _gpt(x: Array, *weights: Array) -> Array:
    hidden = np.tri(POSITIONS, dtype=np.bool_)
    for g, b, q, k, v, o, u, c, w, e, p, d in zip(*weights, strict=True):
        n = layer_norm(x, g, b)
        queries, keys, values = (np.tensordot(n, t, 1).swapaxes(0, 1) for t in (q, k, v))
        scores = np.where(hidden, queries @ keys.swapaxes(1, 2) / np.asarray(np.sqrt(HEAD), x.dtype), -np.inf)
        shares = np.exp(scores - scores.max(axis=2, keepdims=True)).astype(x.dtype)
        mixed = shares @ values / shares.sum(axis=2, keepdims=True)
        x = x + np.tensordot(mixed.swapaxes(0, 1), o, 2)
        x = x + gelu(layer_norm(x, u, c) @ w + e) @ p + d
    return x


CASES = [
    mobilenet_v1(),
    mobilenet_v2(),
    resnet(18, (2, 2, 2, 2), 1),
    resnet(50, (3, 4, 6, 3), 4),
    u_net(),
    Case(
        "GPT-2", GPT, _gpt_arguments, _gpt, TORCH_GPT,
        flops=2.0 * LAYERS * POSITIONS * WIDTH * (4 * WIDTH + 2 * INNER), constants="g b q k v o u c w e p d",
    ),
]  # fmt: skip

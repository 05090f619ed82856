"""Random contractions, operations and convolutions: programs that nothing was tuned on. A seed and a number make each of them again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

__all__ = ["DRAWN", "HeldOut", "contraction"]

TYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "u8": "uint8", "i64": "int64"}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """text: the polyml program; shapes: of its arguments, of a NumPy dtype each; numpy, torch: the text of a function of the arguments, "" where there is none worth a comparison, with results in C order as polyml's are
    (einsum's are in whatever order is left); numpy's, of float64 arguments, is what results are checked against."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    numpy: str
    torch: str


def contraction(subscripts: str, sizes: dict[str, int], dtype: str) -> HeldOut:
    """A contraction of tensors of one dtype ("f32"), of any number of operands."""
    operands, out = subscripts.split("->")
    parts = operands.split(",")
    names = [f"x{k}" for k in range(len(parts))]
    declared = ", ".join(
        f'{name}: {dtype}["{" ".join(part.upper())}"]' for name, part in zip(names, parts, strict=True)
    )
    product = " * ".join(f"{name}[{', '.join(part)}]" for name, part in zip(names, parts, strict=True))
    alone = any(sum(i in part for part in parts) == 1 and i not in out for i in sizes)
    summed = [i for i in sizes if i not in out]
    right = f"sum[{', '.join(summed)}]({product})" if alone else product
    target = f"y[{', '.join(out)}]" if out else "y"
    shown = f"{subscripts} {','.join(f'{i}={n}' for i, n in sizes.items())} {dtype}"
    call = ", ".join(names)
    return HeldOut(
        name=shown,
        text=f"def contraction({declared}):\n    {target} = {right}\n    return y\n",
        shapes=tuple(tuple(sizes[i] for i in part) for part in parts),
        dtypes=(TYPES[dtype],) * len(parts),
        numpy=f"lambda {call}: np.einsum({subscripts!r}, {call}, optimize=True, order='C')",
        torch=f"lambda {call}: torch.einsum({subscripts!r}, {call}).contiguous()",
    )


def draw_contraction(draw: Random) -> HeldOut:
    """Of two to four operands and three to seven indices, each at least in one operand: at most 4e8 multiply-adds if done at once, tensors of at most 8e6 elements."""
    while True:
        indices = "abcdefg"[: draw.randint(3, 7)]
        count = draw.choice((2, 2, 2, 2, 3, 3, 4))
        parts = ["".join(draw.sample(indices, draw.randint(1, min(6, len(indices))))) for _ in range(count)]
        used = sorted(set("".join(parts)))
        out = "".join(draw.sample(used, draw.randint(0 if draw.random() < 0.1 else 1, min(5, len(used)))))
        choices = draw.choice(((2, 3, 4, 5, 7, 8, 9), (5, 8, 12, 16, 17, 24, 31, 32), (16, 33, 48, 64, 100, 128, 200)))
        sizes = {i: draw.choice(choices) for i in used}
        if draw.random() < 0.4:
            sizes[draw.choice(used)] = draw.choice((64, 100, 128, 200, 256, 500, 1000, 4096))
        volumes = [math.prod(sizes[i] for i in part) for part in (*parts, out)]
        if math.prod(sizes.values()) <= 4e8 and 2e3 <= max(volumes) <= 8e6:
            return contraction(f"{','.join(parts)}->{out}", sizes, draw.choice(("f32", "f32", "f32", "f64")))


def draw_operation(draw: Random) -> HeldOut:
    """One operation over a tensor of one to four dimensions: a reduction, a map of elements in another order, something along an axis."""
    rank = draw.randint(1, 4)
    shape: tuple[int, ...] = ()
    while not 500 <= math.prod(shape) <= 4e6:
        shape = tuple(
            draw.choice((2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 63, 64, 100, 128, 200, 512, 1000, 2048, 20000, 300000))
            for _ in range(rank)
        )
    dtype = draw.choice(("f32", "f32", "f32", "f64", "i32", "u8"))
    indices = "abcd"[:rank]
    x = f"x[{', '.join(indices)}]"
    axes = sorted(draw.sample(range(rank), draw.randint(1, rank)))
    axis = axes[0]
    kept = [i for k, i in enumerate(indices) if k not in axes]
    summed = ", ".join(indices[k] for k in axes)
    rest = f"y[{', '.join(kept)}]" if kept else "y"
    full = f"y[{', '.join(indices)}]"
    order = draw.sample(range(rank), rank)
    moved = f"y[{', '.join(indices[k] for k in order)}]"
    wide = {"i32": "i64", "u8": "i32"}.get(dtype)
    widened = f"{wide}({x})" if wide else x
    other = draw.choice([kind for kind in ("f32", "f64", "i32", "i64", "u8") if kind != dtype])
    flipped = ", ".join(f"{dtype.upper()[0]}{k} - 1 - {i}" if k in axes else i for k, i in enumerate(indices))
    sizes = " ".join(f"{dtype.upper()[0]}{k}" for k in range(rank))
    floats = dtype.startswith("f")
    wider = f", dtype=np.{TYPES[wide]}" if wide else ""
    choices: list[tuple[str, str, str, str]] = [
        ("sum", f"{rest} = sum[{summed}]({widened})", f"x.sum({tuple(axes)}{wider})", f"x.sum({axes}{', dtype=torch.' + TYPES[wide] if wide else ''})"),
        ("max", f"{rest} = max[{summed}]({x})", f"x.max({tuple(axes)})", f"x.amax({axes})"),
        ("transpose", f"{moved} = {x}", f"x.transpose({order}).copy()", f"x.permute({order}).clone(memory_format=torch.contiguous_format)"),
        ("flip", f"{full} = x[{flipped}]", f"np.flip(x, {tuple(axes)}).copy()", f"torch.flip(x, {axes})"),
        ("cast", f"{moved} = {other}({x})", f"np.ascontiguousarray(x.transpose({order})).astype(np.{TYPES[other]})", f"x.permute({order}).contiguous().to(torch.{TYPES[other]})"),
        ("argmax", f"{rest_of(indices, axis)} = argmax[{indices[axis]}]({x})", f"x.argmax({axis})", f"x.argmax({axis})"),
        ("axpy", f"{full} = {x} * 3 + v[{indices[axis]}]", f"x * x.dtype.type(3) + v.reshape({along(rank, axis)})", f"torch.add(v.reshape({along(rank, axis)}), x, alpha=3)"),
        ("order", f"{moved} = {x} + v[{indices[axis]}]", f"np.ascontiguousarray((x + v.reshape({along(rank, axis)})).transpose({order}))", f"(x + v.reshape({along(rank, axis)})).permute({order}).contiguous()"),
    ]  # fmt: skip
    if floats:
        r = rest_of(indices, axis)
        m, s = r.replace("y", "m", 1), r.replace("y", "s", 1)
        i = indices[axis]
        kept_m, kept_s = (rest.replace("y", name, 1) for name in "ms")
        many = math.prod(shape[k] for k in axes)
        choices += [
            ("softmax", f"{m} = max[{i}]({x})\n    e[{', '.join(indices)}] = exp({x} - {m})\n    {s} = sum[{i}](e[{', '.join(indices)}])\n    {full} = e[{', '.join(indices)}] / {s}", f"(lambda e: e / e.sum({axis}, keepdims=True))(np.exp(x - x.max({axis}, keepdims=True)))", f"torch.softmax(x, {axis})"),
            ("logsumexp", f"{m} = max[{i}]({x})\n    {r} = log(sum[{i}](exp({x} - {m}))) + {m}", f"np.log(np.exp(x - x.max({axis}, keepdims=True)).sum({axis})) + x.max({axis})", f"torch.logsumexp(x, {axis})"),
("normalize", f"{kept_m} = sum[{summed}]({x}) / {many}\n    {kept_s} = sum[{summed}](({x} - {kept_m})**2) / {many}\n    {full} = ({x} - {kept_m}) * rsqrt({kept_s} + 1e-5)", f"(x - x.mean({tuple(axes)}, keepdims=True)) / np.sqrt(x.var({tuple(axes)}, keepdims=True) + 1e-5)", f"(lambda vm: (x - vm[1]) * torch.rsqrt(vm[0] + 1e-5))(torch.var_mean(x, {axes}, correction=0, keepdim=True))"),
            ("cumsum", f"y: {dtype}[\"{sizes}\"]\n    {full} = sum[j <= {i}](x[{', '.join('j' if k == axis else n for k, n in enumerate(indices))}])", f"x.cumsum({axis})", f"x.cumsum({axis})"),
            ("sigmoid", f"{moved} = {x} * sigmoid({x})", f"np.ascontiguousarray(x.transpose({order}) / (1 + np.exp(-x.transpose({order}))))", f"torch.nn.functional.silu(x.permute({order}).contiguous())"),
        ]  # fmt: skip
    kind, body, numpy, torch = draw.choice(choices)
    vector = (shape[axis],)
    return HeldOut(
        name=f"{kind} {'x'.join(map(str, shape))} axes {axes} order {order} {dtype}{' to ' + other if kind == 'cast' else ''}",
        text=f'def operation(x: {dtype}["{sizes}"], v: {dtype}["V"]):\n    {body}\n    return y\n',
        shapes=(shape, vector),
        dtypes=(TYPES[dtype],) * 2,
        numpy=f"lambda x, v: {numpy}",
        torch=f"lambda x, v: {torch}",
    )


def rest_of(indices: str, axis: int) -> str:
    """The target of a reduction over one axis."""
    kept = [i for k, i in enumerate(indices) if k != axis]
    return f"y[{', '.join(kept)}]" if kept else "y"


def along(rank: int, axis: int) -> tuple[int, ...]:
    """The shape of a vector that broadcasts along one axis."""
    return tuple(-1 if k == axis else 1 for k in range(rank))


def draw_convolution(draw: Random) -> HeldOut:
    """In one to three dimensions, with strides, dilation, zeros at the borders and groups; or a maximum or mean of windows."""
    rank = draw.choice((1, 1, 2, 2, 2, 3))
    while True:
        space = [
            draw.choice({1: (50, 200, 513, 2000), 2: (7, 14, 19, 28, 56, 112), 3: (5, 8, 12, 20)}[rank])
            for _ in range(rank)
        ]
        window = [draw.choice((1, 2, 3, 3, 3, 5, 7)) for _ in range(rank)]
        stride, dilation = draw.choice((1, 1, 1, 2, 3)), draw.choice((1, 1, 1, 2))
        edge = draw.choice((0, 0, max(window) // 2))
        channels, filters, batch = (
            draw.choice(c) for c in ((1, 3, 8, 16, 32, 60, 128), (1, 4, 16, 24, 64, 128), (1, 1, 2, 5))
        )
        kind = draw.choice(("dense", "dense", "dense", "depthwise", "pool", "mean"))
        out = [(n + 2 * edge - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(space, window, strict=True)]
        work = batch * math.prod(out) * math.prod(window) * channels * (filters if kind == "dense" else 1)
        if min(out) >= 1 and 1e4 <= work <= 3e8:
            break
    taps, places = "rst"[:rank], "pqu"[:rank]
    at = ", ".join(
        f"{f'{stride}*' if stride > 1 else ''}{p}" + (f" + {f'{dilation}*' if dilation > 1 else ''}{t}") for p, t in zip(places, taps, strict=True)
    )  # fmt: skip
    low = "pad(x, ((0, 0), (0, 0)" + f", ({edge}, {edge})" * rank + "))" if edge else "x"
    sizes = " ".join("HWD"[:rank])
    ranges = ", ".join(f"{t} < {k}" for t, k in zip(taps, window, strict=True))
    where = ", ".join(places)
    source = f"{low}[n, c, {at}]"
    options = f"stride={stride}, padding={edge}, dilation={dilation}"
    shape = (batch, channels, *space)
    if kind == "dense":
        weights: tuple[int, ...] = (filters, channels, *window)
        body = f"y[n, o, {where}] = {source} * w[o, c, {', '.join(taps)}]"
        declared, torch = f"O C {' '.join('RST'[:rank])}", f"torch.conv{rank}d(x, w, {options})"
    elif kind == "depthwise":
        weights = (channels, *window)
        body = f"y[n, c, {where}] = {source} * w[c, {', '.join(taps)}]"
        declared, torch = (
            f"C {' '.join('RST'[:rank])}",
            f"torch.conv{rank}d(x, w[:, None], {options}, groups={channels})",
        )
    else:
        weights, declared, stride_of = (1,), "Z", f"{window}, {options.replace(f'padding={edge}', 'padding=0')}"
        if edge or (kind == "mean" and dilation > 1):
            return draw_convolution(draw)
        if kind == "pool":
            body, torch = (
                f"y[n, c, {where}] = max[{ranges}]({source})",
                f"torch.nn.functional.max_pool{rank}d(x, {stride_of})",
            )
        else:
            body = f"y[n, c, {where}] = sum[{ranges}]({source}) / {math.prod(window)}"
            torch = f"torch.nn.functional.avg_pool{rank}d(x, {window}, stride={stride})"
    return HeldOut(
        name=f"{kind} {shape} window {window} filters {filters if kind == 'dense' else '-'} {options}",
        text=f'def layer(x: f32["N C {sizes}"], w: f32["{declared}"]):\n    {body}\n    return y\n',
        shapes=(shape, weights),
        dtypes=("float32", "float32"),
        numpy="",
        torch=f"lambda x, w: {torch}",
    )  # fmt: skip


DRAWN: dict[str, Callable[[Random], HeldOut]] = {
    "contractions": draw_contraction,
    "operations": draw_operation,
    "convolutions": draw_convolution,
}

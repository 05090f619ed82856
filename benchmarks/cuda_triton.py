"""Contenders in Triton, as its tutorials write them: a copy, a softmax of whole rows, a tiled product in f32 (without TF32)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["copy", "matmul", "softmax"]


@triton.jit
def _copy(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def copy(x: Any) -> Any:
    y = torch.empty_like(x)
    _copy[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), BLOCK=2048)
    return y


@triton.jit
def _softmax(source, target, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(source + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(target + row * columns + at, e / tl.sum(e, axis=0), mask=at < columns)


def softmax(x: Any) -> Any:
    y = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=16)
    return y


@triton.jit
def _matmul(a, b, c, N, M, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        left = tl.load(
            a + n[:, None] * K + (start + k)[None, :], mask=(n < N)[:, None] & (start + k < K)[None, :], other=0.0
        )
        right = tl.load(
            b + (start + k)[:, None] * M + m[None, :], mask=(start + k < K)[:, None] & (m < M)[None, :], other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + n[:, None] * M + m[None, :], total, mask=(n < N)[:, None] & (m < M)[None, :])


def matmul(x: Any, y: Any) -> Any:
    (n, k), m = x.shape, y.shape[1]
    z = torch.empty((n, m), device=x.device, dtype=x.dtype)
    _matmul[(triton.cdiv(n, 128), triton.cdiv(m, 128))](x, y, z, n, m, k, ROWS=128, COLUMNS=128, DEPTH=16, num_warps=8)
    return z

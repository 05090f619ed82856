"""Covariance and correlation of the columns of a table."""

from __future__ import annotations

import numpy as np

from benchmarks.polybench.kernel import Array, Kernel

__all__ = ["DATAMINING"]


def correlation(data: Array) -> tuple[Array, ...]:
    deviation = data.std(axis=0)
    deviation[deviation <= 0.1] = 1.0
    z = (data - data.mean(axis=0)) / (np.sqrt(data.shape[0]) * deviation)
    result = z.T @ z
    np.fill_diagonal(result, 1.0)
    return (result,)


def covariance(data: Array) -> tuple[Array, ...]:
    return (np.cov(data, rowvar=False),)


DATAMINING = (
    Kernel(
        name="correlation",
        text="""
def correlation(data: f64["N M"]):
    mean[j] = sum[i](data[i, j]) / N
    deviation[j] = sqrt(sum[i]((data[i, j] - mean[j]) * (data[i, j] - mean[j])) / N)
    scale[j] = where(deviation[j] <= 0.1, 1.0, deviation[j])
    z[i, j] = (data[i, j] - mean[j]) / (sqrt(N) * scale[j])
    corr: f64["M M"]
    if i < j:
        corr[i, j] = z[k, i] * z[k, j]
    if i == j:
        corr[i, j] = 1.0
    if i > j:
        corr[i, j] = corr[j, i]
    return corr
""",
        data=lambda n, rng: (rng.random((n["N"], n["M"])),),
        reference=correlation,
    ),
    Kernel(
        name="covariance",
        text="""
def covariance(data: f64["N M"]):
    mean[j] = sum[i](data[i, j]) / N
    z[i, j] = data[i, j] - mean[j]
    cov: f64["M M"]
    if i <= j:
        cov[i, j] = sum[k](z[k, i] * z[k, j]) / (N - 1)
    if i > j:
        cov[i, j] = cov[j, i]
    return cov
""",
        data=lambda n, rng: (rng.random((n["N"], n["M"])),),
        reference=covariance,
    ),
)

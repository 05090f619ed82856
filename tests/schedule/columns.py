"""A loop over the columns of a matrix, as in Gram-Schmidt's: what two tests start from."""

from __future__ import annotations

from polyml.target import Target

SMALL = Target("host", l1_bytes=2048, l2_bytes=24 * 1024, cores=3)
"""This machine with caches so small that blocks appear at test sizes."""

STEPS = """
def f(A: f64["M N"], w: f64["N"]):
    Q: f64["M N"] = 0
    R: f64["N N"] = 0
    for k in range(N):
        Q[i, k] = A[i, k] * w[k]
        if j > k:
            R[k, j] = Q[i, k] * A[i, j]
            A[i, j] -= Q[i, k] * R[k, j]
    return A, Q, R
"""

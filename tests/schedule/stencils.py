"""Stencils that several files put into their programs."""

from __future__ import annotations

FIELD_STEP = """\
        if i >= 1:
            ey[i, j] -= 0.5 * (hz[i, j] - hz[i - 1, j])
        if j >= 1:
            ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        if i < N - 1 and j < M - 1:
            hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])
"""
"""A time step of the fields ex, ey and hz of N x M elements, in place (finite differences in the time domain)."""

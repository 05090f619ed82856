"""A family of small programs, and what they must give: for processes of their own too, so nothing heavy is imported here."""

from __future__ import annotations

import numpy as np

import polyml

__all__ = ["PROGRAMS", "check", "text"]

PROGRAMS = 3


def text(number: int) -> str:
    """One of a family of programs."""
    return (
        f'def family{number}(x: f32["N K"], w: f32["K M"]):\n'
        f"    y[n, m] = x[n, k] * w[k, m] + {number}\n    s = y[n, m]\n    return y, s\n"
    )


def check(f: polyml.Einsum, number: int, n: int = 4) -> None:
    x, w = np.full((n, 3), 2, np.float32), np.ones((3, 5), np.float32)
    y, s = f(x, w)
    assert (y == 6 + number).all()
    assert s == (6 + number) * 5 * n

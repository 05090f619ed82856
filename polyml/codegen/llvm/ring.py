"""How large a pipeline is (codegen/llvm/functions/pipeline.py). By itself, since the runtime asks, which loads kernels from the cache without the emitter."""

from __future__ import annotations

__all__ = ["BYTES", "RING"]

RING = 512
"""Rows whose progress is known at a time: more than there are threads."""

BYTES = 128 + 16 * RING
"""Of a pipeline: the next row in a line of its own, then lower, upper and step, then row and progress of as many as there are."""

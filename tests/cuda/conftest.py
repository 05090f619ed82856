"""Fixtures of the tests for GPUs."""

from __future__ import annotations

import pytest


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """explain() leaves out what a compiler reports: nvcc takes most of a second each time (test_report.py asks for it)."""
    monkeypatch.setattr("polyml.compiler.gpu.usage_lines", lambda code, kernels: [])

"""Testing einsum programs, polyml's own and users' (docs/testing.md): `verify` (any program against the reference interpreter), `assert_close` (tolerances by
reduction length) and `strategies` (Hypothesis; the `test` extra)."""

from polyml.testing.compare import assert_close
from polyml.testing.verify import Report, Worst, verify

__all__ = ["Report", "Worst", "assert_close", "verify"]

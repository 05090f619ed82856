"""Testing einsum programs, polyml's own and users': `compare` (tolerances by reduction length) and `strategies` (Hypothesis; the `test` extra)."""

from polyml.testing.compare import assert_close

__all__ = ["assert_close"]

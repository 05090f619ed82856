"""Side-by-side measurements, reproducible by anyone: `python -m benchmarks.fused`, `.contractions`, `.calls`, `.math_accuracy`. Never part of the tests."""

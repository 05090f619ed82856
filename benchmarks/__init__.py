"""Side-by-side measurements, reproducible by anyone: `python -m benchmarks.fused`, `.calls`, `.math_accuracy`. Never part of the tests."""

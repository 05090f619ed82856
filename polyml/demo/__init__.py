"""`python -m polyml demo`: a network in Einstein notation learns to read handwritten digits; then kernels side by side with NumPy."""

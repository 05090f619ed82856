"""Copies of loop bodies: unrolling, and unroll-and-jam."""

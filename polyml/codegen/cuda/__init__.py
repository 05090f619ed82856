"""Loops as kernels in CUDA C, and the host program that launches them."""

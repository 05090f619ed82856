"""What runs kernels on a GPU: compilers, memory, streams."""

"""The module that all kernels of a process share: what entry points need of Python and NumPy objects, and scratch memory."""

"""Compiled kernels on disk: files that are bounded in all, and when two kernels are the same."""

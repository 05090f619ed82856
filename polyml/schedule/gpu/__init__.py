"""Scops rewritten for a GPU: reductions in parts, tiles in shared memory, rescaled softmax sums."""

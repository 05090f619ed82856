"""Heuristics: which loops of an ordered tree are tiled, vectorized, unrolled and jammed, shared by threads."""

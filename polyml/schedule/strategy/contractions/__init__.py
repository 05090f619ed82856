"""Contractions in an ordered tree: where they are, and the tree of one in blocks."""

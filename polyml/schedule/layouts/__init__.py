"""Scops in which arrays are laid out anew, for as long as loops run."""

"""Tensor equations in SSA form: their rewriting, fusion into regions, and the plan of the host program."""

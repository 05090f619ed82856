"""The bottom of the house: quasi-affine expressions and isl helpers that every stage uses."""

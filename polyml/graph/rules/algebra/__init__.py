"""Expressions and domains in their simplest form: constants, algebra that holds for every number, indices of one value, conditions that bound a domain."""

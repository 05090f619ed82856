"""From a resolved program to a graph."""

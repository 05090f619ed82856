"""Functions of a module: frames, bodies that are functions of their own, what they use from outside, pipelined threads."""

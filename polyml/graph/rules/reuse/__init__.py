"""What is computed once, elsewhere or not at all: common subexpressions, dead code, inlining, code moved out of loops, operands and tables made ahead."""

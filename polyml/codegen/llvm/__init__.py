"""Loops as LLVM IR."""

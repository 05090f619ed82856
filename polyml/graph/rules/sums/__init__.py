"""Reductions as cheaper ones: factors moved out, sums within sums, sums taken apart or put together, halves, and terms that a mask leaves out."""

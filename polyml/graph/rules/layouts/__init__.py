"""In which order tensors' elements lie: operands and results laid out first, orders that readers want, channels and interleaved elements."""

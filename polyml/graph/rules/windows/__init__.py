"""Sums over windows (convolutions, stencils, their gradients): lanes along filters, phases of strides, padding, scattered sums gathered."""

"""What is proved of kernels: barriers are enough, blocks need not wait for each other, indices fit into 32 bits."""

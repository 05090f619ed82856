"""The strategy for GPUs: blocks and threads, tiles in shared memory."""

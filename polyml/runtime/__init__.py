"""What runs a compiled program: entry points, argument checks, threads, memory, caches on disk."""

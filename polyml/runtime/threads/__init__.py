"""The threads of parallel and pipelined loops: a pool as LLVM IR, and the function that emitted code calls."""

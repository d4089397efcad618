"""The JIT: LLVM IR compiled in the process, cached on disk, linked."""

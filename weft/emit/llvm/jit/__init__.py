"""Machine code from LLVM text: compiled in the process, kept on disk, linked."""

"""The LLVM target: kernels for CPUs, written as LLVM text and compiled in the process."""

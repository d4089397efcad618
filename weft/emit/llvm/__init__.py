"""The LLVM target: kernels for CPUs, emitted as LLVM IR and compiled in the process."""

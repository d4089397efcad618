"""Control flow as one function: buffers, kernels inlined into it, loops and branches."""

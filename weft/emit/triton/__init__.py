"""The triton target: kernels for GPUs, in memory that PyTorch allocates."""

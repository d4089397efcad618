"""The runtime of the triton target: PyTorch's memory, streams and CUDA graphs."""

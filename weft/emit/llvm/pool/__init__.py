"""The threads that kernels run on, and lists of kernels that run in one native call."""

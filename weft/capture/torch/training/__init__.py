"""Training steps of PyTorch modules: gradients, optimizers, checkpointing and accumulation."""

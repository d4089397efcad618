"""Search for sharding plans: repeated layers, classes of dims, candidates, simulated time."""

"""StableHLO: text, bytecode and modules as sources."""

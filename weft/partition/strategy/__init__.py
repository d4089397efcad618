"""Strategy: which axes split the factors of each op, and policies for whole programs."""

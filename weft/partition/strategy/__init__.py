"""Strategy: the choice of axes for the factors of each op, and policies for whole programs."""

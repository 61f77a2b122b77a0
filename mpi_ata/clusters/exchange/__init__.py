"""How x reaches the workers of a round and how the sum of their results comes back: star or chain."""

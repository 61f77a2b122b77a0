"""What ATA-Auto consists of: a model of task times, foreseen rounds, and two ways to plan them."""

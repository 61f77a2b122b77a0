"""The parts of ATA-Auto: a model of task times, a prediction of rounds, and two ways to plan them."""

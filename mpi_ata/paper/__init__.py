"""The paper's experiments: what they run, print and draw."""

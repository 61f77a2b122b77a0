"""The paper's experiments: what is run, printed and drawn; the machinery is the package's own."""

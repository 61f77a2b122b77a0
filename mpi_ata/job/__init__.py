"""Job files: what a user may write, and the parts of a run that are built from it."""

"""The run file: what is saved of a run, when, and how it is read again."""

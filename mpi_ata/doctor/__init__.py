"""Checks of everything that jobs need to run, each with one finding."""

"""Runs that a Python script describes with objects, instead of a job file."""

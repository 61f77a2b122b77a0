"""Batch jobs: submitting runs to a scheduler, what runs inside a batch job, and the status of them all."""

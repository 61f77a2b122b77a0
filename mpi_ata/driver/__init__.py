"""Driving a run from its first round to its last: the loop, what it records, who looks on."""

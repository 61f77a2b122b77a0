"""The engine on MPI ranks: who is there, what they were ordered to do, and what comes back."""

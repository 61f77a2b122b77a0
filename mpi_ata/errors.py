"""What can go wrong, said in one sentence each."""


class UsageError(ValueError):
    """The user asked for something that cannot be: a wrong key, value or combination."""


class RunError(RuntimeError):
    """A run that started well cannot go on."""

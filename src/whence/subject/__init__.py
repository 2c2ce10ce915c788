"""What is explained: a model with its inputs, target and baseline in the one form that methods see, and its passes."""

from whence.subject.subject import Facts, Notes, Role, Subject

__all__ = ["Facts", "Notes", "Role", "Subject"]

"""What is explained: a model with its inputs, target and baseline in the one form that methods see, and its passes."""

from whence.subject.record import Measured, Record
from whence.subject.subject import Role, Subject

__all__ = ["Measured", "Record", "Role", "Subject"]

"""From what users have to a Subject."""

"""Golden answers: every method on small models of every kind, written by one tree and compared with another's."""

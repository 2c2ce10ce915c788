"""How attributions look. Nothing else in Whence knows this package; it is imported when something is shown."""

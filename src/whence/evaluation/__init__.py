"""Evidence: how faithful methods are to a model, measured on the user's own rows."""

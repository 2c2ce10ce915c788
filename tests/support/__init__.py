"""What test files share: small models, slow reference implementations, runners. No tests here."""

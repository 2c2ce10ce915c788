"""Builds the site: stages the pages, writes one for each method, metric and axiom, and links short names."""

"""Helpers that know nothing of attribution: checks, files, keys, progress, quadrature, statistics, terminal, trees."""

"""Benchmarks: every speed or quality claim of the README comes from one of these."""

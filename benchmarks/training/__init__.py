"""Recipes that trained the two tiny models shipped under ``engine_adapter/models``."""

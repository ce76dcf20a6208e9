"""Bytes at rest: the media that hold blocks."""

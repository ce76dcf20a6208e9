"""Bytes in motion: frames, mapped segments, sockets."""

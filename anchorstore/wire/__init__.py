"""Bytes on the wire: generated stubs, and the tables between them and the domain."""

"""Protocols and algorithms as pure state machines: bytes in, bytes out."""

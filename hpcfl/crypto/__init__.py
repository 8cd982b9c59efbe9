"""Cryptographic building blocks: keystreams, groups, key agreement, secret sharing, sampling."""

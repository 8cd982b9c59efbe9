"""Audits of differential privacy: what a mechanism gives away, measured on canaries."""

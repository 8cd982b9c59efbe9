"""Presentation of results: number formats, a model of tables, and markup."""

"""How results are shown: number formats, one model of a table, and markup."""

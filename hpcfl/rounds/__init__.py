"""One timed and validated round: the common part of `bench` and `train`."""

"""One round, timed and validated: what `bench` and `train` share."""

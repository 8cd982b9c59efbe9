"""Settings under which training with noise does best, by the bounds of the papers."""

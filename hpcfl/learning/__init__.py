"""Training for real: data sets, how devices share them, models and local training."""

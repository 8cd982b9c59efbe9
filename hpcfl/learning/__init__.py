"""Training on real data: data sets, their partition among devices, models and local training."""

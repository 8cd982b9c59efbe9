"""The study: the costs of private federated learning with each protocol."""

"""The study: what private federated learning costs, with each protocol."""

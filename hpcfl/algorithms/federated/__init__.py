"""Federated algorithms: what each device contributes to a round."""

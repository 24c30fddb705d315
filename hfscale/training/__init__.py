"""Training: the Trainer that runs under every strategy, the same step by hand, events and checkpoints."""

"""What share of a cluster's time becomes training: closed forms, a simulator, and advice on how to checkpoint."""

"""The proof of what the checkpoints promise: lives that end by SIGKILL, flipped bits and power losses, counted."""

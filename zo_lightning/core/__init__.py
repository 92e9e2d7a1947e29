"""Types, randomness, the bank and the four roles. Imports torch and the standard library only."""

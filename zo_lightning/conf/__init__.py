"""Configuration files, composed by Hydra."""

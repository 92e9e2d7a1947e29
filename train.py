"""Train: ``python train.py model=smollm2-135m task=sentiment``; the same as ``zo-train``."""

from zo_lightning.cli.train import main

if __name__ == "__main__":
    main()

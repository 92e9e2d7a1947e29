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

{_serve(base, about["base_revision"], rank) if rank else _TOO_LARGE}
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


_TOO_LARGE = "vLLM serves adapters of at most 512 rank columns: for it, export with `format=merged`."


def _serve(base: str, revision: str | None, rank: int) -> str:
    return f"""\
Serve it with vLLM, as the model `tuned`:

```bash
vllm serve {base}{f" --revision {revision}" if revision else ""} \\
  --enable-lora --max-lora-rank {rank} --lora-modules tuned=/path/to/this/folder
```"""


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

"""Digests of stored weights, model cards, and folders that appear whole or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from zo_lightning.cli.export import whole_folder
from zo_lightning.errors import ConfigError
from zo_lightning.export.card import adapter_card, merged_card
from zo_lightning.models import weights_digest

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.tensor(1)}
ABOUT = {
    "base": "org/base",
    "base_revision": None,
    "base_digest": "f00d",
    "steps": 7,
    "rank": 6,
    "max_lora_rank": 8,
    "dtype": "float32",
}


def stored(folder: Path, *shards: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    for number, shard in enumerate(shards):
        save_file(shard, folder / f"model-{number}.safetensors")
    return folder


def test_a_digest_is_of_the_weights_not_of_their_files(tmp_path: Path):
    whole = stored(tmp_path / "whole", WEIGHTS)
    sharded = stored(tmp_path / "sharded", *({name: WEIGHTS[name]} for name in "cab"))
    (tmp_path / "bin").mkdir()
    torch.save(WEIGHTS, tmp_path / "bin" / "pytorch_model.bin")
    assert weights_digest(whole) == weights_digest(sharded) == weights_digest(tmp_path / "bin")


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.arange(6.0).view(3, 2)},
        {"a": torch.arange(6.0).view(2, 3).nextafter(torch.tensor(9.0))},
        {"b": torch.ones(4, dtype=torch.float16)},
        {"d": torch.ones(1)},
    ],
    ids=["shape", "bits", "type", "name"],
)
def test_no_change_escapes_the_digest(tmp_path: Path, change: dict[str, torch.Tensor]):
    before, after = stored(tmp_path / "before", WEIGHTS), stored(tmp_path / "after", WEIGHTS | change)
    assert weights_digest(before) != weights_digest(after)


def test_a_card_says_how_to_serve(tmp_path: Path):
    card = adapter_card(ABOUT)
    for words in (
        "base_model: org/base\n",
        "--model org/base --dtype float32 --enable-lora --max-lora-rank 8 --lora-modules tuned=",
        "f00d",
        "7 steps",
        "Rank 6",
    ):
        assert words in card
    pinned = adapter_card(ABOUT | {"base_revision": "v1"})
    assert 'from_pretrained("org/base", revision="v1")' in pinned and "--dtype float32 --revision v1" in pinned
    beyond = adapter_card(ABOUT | {"rank": 600, "max_lora_rank": None})
    assert "api_server" not in beyond and "format=merged" in beyond
    merged = merged_card(ABOUT | {"base": str(tmp_path), "dtype": "bfloat16"})
    assert "base_model" not in merged and "rounded once to bfloat16" in merged


def test_an_export_appears_whole_or_not_at_all(tmp_path: Path):
    out = tmp_path / "new" / "out"
    with pytest.raises(RuntimeError), whole_folder(out) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert not list(out.parent.iterdir())
    (out.parent / ".out.partial").mkdir()  # of a process that was killed
    (out.parent / ".out.partial" / "half").touch()
    out.mkdir()  # an empty folder may be there
    with whole_folder(out) as folder:
        (folder / "whole").touch(mode=0o600)
    assert (out / "whole").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["whole"]


def test_what_is_there_stays(tmp_path: Path):
    (tmp_path / "out").mkdir()
    kept = tmp_path / "out" / "kept"
    kept.touch()
    for taken in (tmp_path / "out", kept):
        with pytest.raises(ConfigError, match="there already"), whole_folder(taken):
            pass
    assert kept.exists() and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_and_a_place_that_is_none_are_told(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"), whole_folder(tmp_path / "file" / "out"):
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written"), whole_folder(tmp_path / "out") as folder:
            save_file({"a": torch.zeros(1000)}, folder / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

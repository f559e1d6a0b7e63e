"""TextVQA from shards: the choosing rule, what is refused, and the dataset that comes of it."""

from __future__ import annotations

import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from vlmconsole.data.dataset import read_manifest
from vlmconsole.data.rows import DataError, Row, read_rows, write_rows
from vlmconsole.data.splits import LeakError, PictureIndex
from vlmconsole.data.textvqa import NAME, TextVqaQuestion, choose, make_textvqa, read_shard
from vlmconsole.scoring.scorers import read_truth, score


def jpeg(number: int) -> bytes:
    rng = random.Random(number)
    image = Image.new("RGB", (32, 24), (rng.randrange(256), rng.randrange(256), rng.randrange(256)))
    image.putpixel((number % 32, number % 24), (number % 256, 0, 0))
    out = io.BytesIO()
    image.save(out, "JPEG")
    return out.getvalue()


def row(number: int, question_id: int, **changes: Any) -> dict[str, Any]:
    return {
        "image": {"bytes": jpeg(number), "path": f"{number}.jpg"},
        "image_id": f"{number:016x}",
        "question_id": question_id,
        "question": f"what does sign {question_id} say?",
        "answers": [f"stop {question_id}"] * 9 + ["halt"],
        "image_classes": ["Sign"],
        **changes,
    }


def write_shards(folder: Path, rows: list[dict[str, Any]], shards: int = 3) -> Path:
    """As the public data set lies on disk: several Parquet files with more columns than are needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(shards):
        part = rows[k::shards]
        if part:
            pq.write_table(pa.Table.from_pylist(part), folder / f"validation-{k:05d}-of-{shards:05d}.parquet")
    return folder


def many(pictures: int = 90) -> list[dict[str, Any]]:
    """Two questions a picture, the higher id first for half of them, shuffled over the shards."""
    rows = [row(n, 34600 + 2 * n + (k if n % 2 else 1 - k)) for n in range(pictures) for k in range(2)]
    random.Random(4).shuffle(rows)
    return rows


def test_the_64_pictures_with_the_lowest_hashes_each_with_its_lowest_question(tmp_path: Path) -> None:
    rows = many()
    folder = make_textvqa(write_shards(tmp_path / "shards", rows), tmp_path / "datasets")
    made = list(read_rows(folder / f"{NAME}.parquet"))
    lowest: dict[str, int] = {}
    for one in rows:  # the rule once more, in other words
        sha = hashlib.sha256(one["image"]["bytes"]).hexdigest()
        lowest[sha] = min(lowest.get(sha, one["question_id"]), one["question_id"])
    wanted = sorted(lowest.items())[:64]
    assert [(r.sha256, int(r.uid.rpartition("-")[2])) for r in made] == wanted
    assert len({r.sha256 for r in made}) == 64


def test_only_picture_and_question_reach_the_prompt_and_the_truth_scores(tmp_path: Path) -> None:
    folder = make_textvqa(write_shards(tmp_path / "shards", many()), tmp_path / "datasets")
    for one in read_rows(folder / f"{NAME}.parquet"):
        number = one.uid.rpartition("-")[2]
        assert one.question == f"what does sign {number} say?"
        truth = read_truth("textvqa", one.truth)
        assert truth == (f"stop {number}",) * 9 + ("halt",)
        assert score("textvqa", f"Stop {number}.", truth).partial == 1.0
        assert score("textvqa", "halt", truth).partial == pytest.approx(0.3)


def test_the_same_shards_again_change_nothing_and_other_shards_are_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", many())
    folder = make_textvqa(shards, tmp_path / "datasets")
    before = (folder / "manifest.json").read_bytes()
    assert make_textvqa(shards, tmp_path / "datasets") == folder
    assert (folder / "manifest.json").read_bytes() == before
    others = write_shards(tmp_path / "others", [row(1000 + n, n) for n in range(64)])
    with pytest.raises(DataError, match="other shards"):
        make_textvqa(others, tmp_path / "datasets")
    assert read_manifest(folder)["splits"][NAME]["role"] == "test"


def test_its_pictures_are_known_to_the_lab_so_that_they_cannot_be_trained_on(tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"
    folder = make_textvqa(write_shards(tmp_path / "shards", many()), datasets)
    first = next(read_rows(folder / f"{NAME}.parquet"))
    assert [known.place for known in PictureIndex(datasets).find([first.sha256])] == [f"{NAME}:{NAME} {first.uid}"]


def test_a_picture_of_another_dataset_is_a_leak(tmp_path: Path) -> None:
    from vlmconsole.data.splits import Known

    rows = [row(n, n) for n in range(64)]
    data = rows[7]["image"]["bytes"]
    sha = hashlib.sha256(data).hexdigest()
    with PictureIndex(tmp_path / "datasets").adding([Known(sha, "0" * 64, "sft", "x", "train", "train", "sft-7")]):
        pass
    with pytest.raises(LeakError, match="sft:train sft-7"):
        make_textvqa(write_shards(tmp_path / "shards", rows), tmp_path / "datasets")
    assert not (tmp_path / "datasets" / NAME).exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": {"bytes": None, "path": "a.jpg"}}, "no bytes"),
        ({"answers": ["one"] * 9}, "10 human answers"),
        ({"question": " "}, "no question"),
        ({"image": {"bytes": b"not a picture", "path": "a.jpg"}}, "image"),
    ],
)
def test_what_a_shard_lacks_is_said_with_its_row(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    rows = [row(n, n) for n in range(63)] + [row(63, 63, **changes)]
    with pytest.raises(DataError, match=said):
        make_textvqa(write_shards(tmp_path / "shards", rows, shards=1), tmp_path / "datasets")


def test_too_few_pictures_no_shards_and_no_parquet_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="63 different images; 64"):
        make_textvqa(write_shards(tmp_path / "shards", [row(n % 63, n) for n in range(90)]), tmp_path / "datasets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no Parquet shard"):
        make_textvqa(tmp_path / "empty", tmp_path / "datasets")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="cannot be read"):
        list(read_shard(tmp_path / "bad.parquet"))
    pq.write_table(pa.table({"image": [1], "question": ["q"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="image_id, question_id, answers"):
        list(read_shard(tmp_path / "other.parquet"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 99)), min_size=1, max_size=60), st.integers(1, 6))
def test_the_choice_does_not_depend_on_the_order_of_the_rows(pairs: list[tuple[int, int]], n: int) -> None:
    questions = [TextVqaQuestion(bytes([p]), "", q, f"q{q}", ()) for p, q in pairs]
    if len({p for p, _ in pairs}) < n:
        with pytest.raises(DataError):
            choose(iter(questions), n)
        return
    one = choose(iter(questions), n)
    two = choose(iter(sorted(questions, key=lambda q: json.dumps([q.question_id, q.sha256]))), n)
    assert [(q.sha256, q.question_id) for q in one] == [(q.sha256, q.question_id) for q in two]
    assert [q.sha256 for q in one] == sorted(q.sha256 for q in one)


def test_the_check_of_the_dataset_finds_what_was_changed(tmp_path: Path) -> None:
    from vlmconsole.data.examine import check_dataset

    datasets = tmp_path / "datasets"
    folder = make_textvqa(write_shards(tmp_path / "shards", many()), datasets)
    states = {one.name: one.state for one in check_dataset(folder, datasets)}
    assert states == {**dict.fromkeys(("hashes", "choice", "truth", "isolation"), "ok"), "labels": "not verifiable"}
    rows = list(read_rows(folder / f"{NAME}.parquet"))
    other = Row(rows[3].uid, jpeg(2000), rows[3].question, '["one answer"]', rows[3].source, "textvqa", NAME, 3)
    write_rows(folder / f"{NAME}.parquet", [*rows[:3], other, *rows[4:]])
    states = {one.name: one.state for one in check_dataset(folder, datasets)}
    assert [name for name, state in states.items() if state == "wrong"] == ["hashes", "choice", "truth", "isolation"]


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1.5"], ids=["power", "long", "below", "part"])
def test_a_question_id_that_only_looks_like_a_number_is_said(tmp_path: Path, number: str) -> None:
    shard = write_shards(tmp_path, [row(1, 1) | {"question_id": number}], shards=1)
    with refused("id-invalid", "row 1", "question_id", error=DataError):
        make_textvqa(shard, tmp_path / "datasets")


def test_text_that_is_no_text_is_said(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [row(1, 1)], shards=1)
    path = next(path.glob("*.parquet")) if path.is_dir() else path
    table = pq.read_table(path)
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(table.set_column(table.schema.get_field_index("question"), "question", bad), path)
    with refused("parquet-invalid", "row 0", error=DataError):
        list(read_shard(path))


@pytest.mark.parametrize(
    ("text", "code", "noun"),
    [
        ("[" * 90_000, "nesting-too-deep", "JSON"),
        ("{}", "manifest-invalid", "splits"),
        ('{"splits": 3, "files": {}}', "manifest-invalid", "splits"),
        ('{"splits": {}, "files": {"a": 3}}', "manifest-invalid", "files"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str, code: str, noun: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with refused(code, "manifest.json", noun, error=DataError):
        read_manifest(tmp_path)

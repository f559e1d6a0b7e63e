"""Own examples as load: order, repeats, salts, what conditions hold, and bodies that never lie in memory together."""

from __future__ import annotations

import base64
import io
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from refusals import refused
from test_bench_cli import PATIENT, call

from vlmconsole.jobs import bench
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.example_inputs import ExampleInputs, Questions, dataset_questions, folder_questions
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.models.messages import Message
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.salted import salted

REQUEST = {"model": "reference", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}


def image_bytes(kind: str, size: tuple[int, int] = (64, 48), seed: int = 0) -> bytes:
    file = io.BytesIO()
    image = Image.frombytes("RGB", size, random.Random(seed).randbytes(size[0] * size[1] * 3))
    image.save(file, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return file.getvalue()


def inputs(tmp_path: Path, count: int, kind: str = "PNG", jpeg: int | None = None) -> ExampleInputs:
    def read() -> Iterator[list[Message]]:
        for number in range(count):
            picture = open_picture(image_bytes(kind, seed=number))
            yield [Message("system", "Be brief."), Message("user", f"Question {number}?", (picture,))]

    return ExampleInputs(Questions("shops/test", "0" * 64, read()), REQUEST, "cell", (tmp_path / "s").open("w+b"), jpeg)


def sent(load: ExampleInputs, order: list[int], **how: bool) -> list[dict[str, Any]]:
    return [json.loads(b"".join(body.parts)) for body in load.bodies(order, as_is=how.get("as_is", False))]


def pixels(message: dict[str, Any]) -> bytes:
    url = next(part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url")
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB").tobytes()


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
def test_each_question_is_used_once_before_any_twice(tmp_path_factory: Any, n: int, count: int, seed: int) -> None:
    load = inputs(tmp_path_factory.mktemp("spool"), n)
    order = load.order(count, seed)
    assert len(order) == count and order == load.order(count, seed)
    for lap in range(0, count, n):
        assert max(Counter(order[lap : lap + n]).values()) == 1
    uses = Counter(order).values()
    assert max(uses) - (min(uses) if len(uses) == n else 0) <= 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_repeat_is_salted_in_text_and_pixels_and_the_first_use_is_not(tmp_path: Path, kind: str) -> None:
    load = inputs(tmp_path, 1, kind)
    bodies = sent(load, [0] * 6)
    users = [body["messages"][1] for body in bodies]
    first = users[0]["content"]
    own = base64.b64encode(image_bytes(kind)).decode()
    assert first[0]["image_url"]["url"].endswith(own) and first[1]["text"] == "Question 0?"
    assert len({pixels(user) for user in users}) == 6, "no image cache knows any of them"
    starts = [body["messages"][0]["content"] for body in bodies]
    assert starts[0] == "Be brief." and len(set(starts)) == 6 and all(text.endswith("Be brief.") for text in starts)
    assert all(user["content"][-1]["text"] == "Question 0?" for user in users)
    as_is = sent(load, [0] * 3, as_is=True)
    assert as_is[0] == as_is[1] == as_is[2] == bodies[0]


def test_a_salt_changes_little_of_an_image_and_keeps_its_format() -> None:
    for kind in ("PNG", "JPEG"):
        data = image_bytes(kind, (640, 480))
        url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
        made = [base64.b64decode(salted(url, turn).partition(",")[2]) for turn in (1, 2)]
        for other in made:
            image = Image.open(io.BytesIO(other))
            assert image.format == kind and image.size == (640, 480)
            assert abs(len(other) - len(data)) < 0.1 * len(data)
        assert made[0] != made[1]


def test_conditions_hold_what_was_sent(tmp_path: Path) -> None:
    load = inputs(tmp_path, 3)
    facts = load.conditions([0, 1, 2, 0], as_is=False)
    assert (facts["image"], facts["image_formats"], facts["repeats"]) == ("64x48", "image/png 3", "salted")
    assert load.conditions([0, 1], as_is=False)["repeats"] is None
    assert load.conditions([0, 0], as_is=True)["repeats"] == "as they are"
    assert "1 of 4" in load.note([0, 1, 2, 0])
    smaller = inputs(tmp_path, 3, jpeg=40)
    assert smaller.images.formats == {"image/jpeg": 3} and smaller.identity != load.identity
    assert smaller.images.sent_bytes < load.images.sent_bytes


def test_images_of_a_folder_are_asked_about_several_at_once(tmp_path: Path) -> None:
    for number, (kind, size) in enumerate([("PNG", (64, 48)), ("JPEG", (320, 200)), ("PNG", (80, 80))]):
        (tmp_path / f"{number}.{kind.lower()}").write_bytes(image_bytes(kind, size, number))
    (tmp_path / "notes.txt").write_text("no image")
    pairs = list(folder_questions(tmp_path, "Which is larger?", 2).read)
    assert len(pairs) == 1 and len(pairs[0][0].pictures) == 2
    assert folder_questions(tmp_path, "a", 1).identity != folder_questions(tmp_path, "b", 1).identity
    load = ExampleInputs(folder_questions(tmp_path, "a", 1), REQUEST, "cell", (tmp_path / "s").open("w+b"))
    assert load.images.conditions()["image"] == "64x48–320x200"
    with refused("images-missing", "4"):
        folder_questions(tmp_path, "a", 4)


@pytest.mark.parametrize(
    ("settings", "noun"),
    [
        ({"images": "d"}, "prompt"),
        ({"data": "d", "images": "e", "prompt": "x"}, "two loads"),
        ({"prompt": "x"}, "images"),
        ({"split": "x"}, "data"),
        ({"repeat_as_is": True}, "repeat_as_is"),
        ({"data": "d", "image": "448x336"}, "image"),
        ({"data": "d", "input_tokens": 9}, "input_tokens"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], noun: str) -> None:
    with pytest.raises(ValidationError, match=noun):
        BenchSettings.model_validate(settings)


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with running(Schedule(role_ms=0, ttft_ms=5, itl_ms=1, tokens=4)) as reference:
        yield reference


def dataset(home: Path, n: int) -> None:
    """A dataset of n own questions, imported as a person would."""
    rows = []
    for number in range(n):
        (home / f"{number}.png").write_bytes(image_bytes("PNG", seed=number))
        rows.append({"id": f"e{number}", "image": f"{number}.png", "question": f"What is {number}?", "answer": "1"})
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, result, said = call(home, "data", "import", str(home / "rows.jsonl"), "--name", "shops", "--as", "test")
    assert code == 0, f"{result} {said}"


def test_bench_sends_a_datasets_questions(server: Reference, tmp_path: Path) -> None:
    dataset(tmp_path, 3)
    common = ["--base-url", server.base_url, "--model", "reference", "--output-tokens", "4", "--set", PATIENT]
    code, result, said = call(tmp_path, "bench", "--data", "shops", "-n", "5", "-c", "2", *common)
    assert code == 0, said
    conditions = result["conditions"]
    assert result["summary"]["n"] == 5 and conditions["image"] == "64x48" and conditions["repeats"] == "salted"
    assert len(conditions["data_sha256"]) == 64 and any(
        "2 of 5 requests repeat" in note for note in conditions["notes"]
    )
    assert "What is" in (tmp_path / "runs" / result["run"] / "request.json").read_text()

    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "a.png").write_bytes(image_bytes("PNG"))
    words = ["bench", "--images", str(folder), "--prompt", "What is the total?", "-n", "2", "--repeat-as-is", *common]
    code, other, said = call(tmp_path, *words)
    assert code == 0, said
    assert other["conditions"]["repeats"] == "as they are"
    code, compared, _ = call(tmp_path, "runs", "compare", result["run"], other["run"])
    assert code == 3 and {"data_sha256", "repeats"} <= {difference["key"] for difference in compared["differs"]}
    missing = bench.problems(BenchSettings(data="none"), Places(tmp_path), True)
    assert len(missing) == 1 and "none" in missing[0]
    with refused("split-missing", "test"):
        dataset_questions(tmp_path / "datasets" / "shops", "dev")


@pytest.mark.slow
def test_ten_thousand_requests_of_two_megabytes_in_bounded_memory(server: Reference, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="bench", preset="test", spec={}, title="test", home=tmp_path)
    large = [image_bytes("PNG", (836, 836), seed) for seed in range(3)]
    assert all(len(data) > 2e6 for data in large)
    read = ([Message("user", "What is it?", (open_picture(data),))] for data in large)
    with (tmp_path / "spool").open("w+b") as spool:
        load = ExampleInputs(Questions("large", "0" * 64, read), REQUEST, "cell", spool)
        bodies = load.bodies(load.order(10_000, 0), as_is=True)
        summary = run_cell(LoadCell("large", Target.of(server.chat_url), bodies, 16, lag_limit_s=60.0), run)
    assert (summary.n, summary.failures) == (10_000, 0)
    assert summary.client is not None and summary.client.rss_bytes < 400 * 2**20

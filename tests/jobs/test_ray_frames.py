"""A run folder told in lines of text and put together again: odd lines, any order of growth, hostile names."""

import io
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.jobs.ray_frames import FRAME, LATE, Frame, Giver, Taker
from vlmconsole.runs.folder import RunFolder


def told(out: io.StringIO) -> list[Frame]:
    found = [Frame.parse(line) for line in out.getvalue().splitlines()]
    assert None not in found
    return [frame for frame in found if frame is not None]


def test_what_grows_changes_and_comes_late_arrives_as_it_was(tmp_path: Path) -> None:
    far, near, out = tmp_path / "far", RunFolder(tmp_path / "near"), io.StringIO()
    far.mkdir(), near.path.mkdir()
    giver = Giver(far, out)
    (far / "events.jsonl").write_text('{"a": 1}\n')
    (far / "plan.json").write_text("one")
    giver.give()
    with (far / "events.jsonl").open("a") as file:
        file.write('{"a": 2}\n')
    (far / "plan.json").write_text("two, and longer")
    (far / "adapter").mkdir()
    (far / "adapter" / "weights.bin").write_bytes(bytes(range(256)) * (LATE // 256 + 9))
    giver.give()
    (far / "summary.json").write_text("{}")
    (far / "state.json").write_text('{"state": "done"}')
    (far / "elsewhere").symlink_to("/etc/hostname")
    before = out.getvalue()
    assert "weights.bin" not in before
    giver.finish()
    taker = Taker(near)
    frames = told(out)
    for frame in [*frames[:3], *frames]:  # the log read anew from its start
        taker.take(frame)
    assert near.file("events.jsonl").read_text() == '{"a": 1}\n{"a": 2}\n'
    assert near.file("plan.json").read_text() == "two, and longer"
    assert near.file("adapter/weights.bin").read_bytes() == (far / "adapter" / "weights.bin").read_bytes()
    assert near.file("far-summary.json").exists() and not near.file("summary.json").exists()
    assert not near.file("state.json").exists() and not near.file("elsewhere").exists()
    assert taker.end == {"state": "done"}


def test_a_log_cannot_write_outside_the_run_folder(tmp_path: Path) -> None:
    near = RunFolder(tmp_path / "near")
    near.path.mkdir()
    near.file("out").symlink_to(tmp_path)
    taker = Taker(near)
    for number, name in enumerate(
        ("../x.txt", "/tmp/x-of-a-frame.txt", "a/../../x.txt", "out/x.txt", "job.json", ""), 1
    ):
        taker.take(Frame(number, name, b"x", True))
    assert not list(tmp_path.glob("x.txt")) and not Path("/tmp/x-of-a-frame.txt").exists()
    assert [path.name for path in near.path.iterdir()] == ["out"]


@given(st.text(max_size=80), st.sampled_from(["", FRAME, "x " + FRAME, FRAME + '{"n": 1, "file": ']))
def test_no_line_breaks_the_reader(text: str, before: str) -> None:
    Frame.parse(before + text)


@given(st.integers(1, 10**6), st.text(max_size=20), st.binary(max_size=99), st.booleans())
def test_a_frame_comes_back_as_it_went(number: int, name: str, data: bytes, new: bool) -> None:
    frame = Frame(number, name, data, new)
    assert "\n" not in frame.line() and Frame.parse("(driver) " + frame.line()) == frame


def test_wrong_types_are_no_frames() -> None:
    good = json.loads(Frame(1, "a").line().removeprefix(FRAME))
    for key, value in (("n", None), ("file", 3), ("data", 7), ("data", "%"), ("end", [])):
        assert Frame.parse(FRAME + json.dumps(good | {key: value})) is None

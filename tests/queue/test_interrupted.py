"""Ctrl-C in the moment between queueing a job and following it: no job is left behind unsaid."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_queue import held, lab

from vlmconsole.cli import main
from vlmconsole.cli.common import hush, state
from vlmconsole.cli.foreground import interruptions
from vlmconsole.queue import adding, process
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A lab whose queue nobody works on, and a person's shell: Ctrl-C is not ignored."""
    made = lab(tmp_path / "lab")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with held(made):
        yield made
    signal.signal(signal.SIGINT, before)


def ctrl_c_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def then(*words: Any, **more: Any) -> Any:
        value = real(*words, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return value

    monkeypatch.setattr(owner, name, then)


def call(places: Places, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(places.home), *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("words", [("run", "story"), ("bench", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")])
@pytest.mark.parametrize("moment", [(adding, "add"), (process, "ensure")], ids=["added", "awake"])
def test_the_job_is_taken_back(
    places: Places, words: tuple[str, ...], moment: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctrl_c_after(monkeypatch, *moment)
    if moment[1] == "ensure":  # asked again in every look: a third Ctrl-C ends the program as ever
        monkeypatch.setattr(process, "running", lambda _: {"pid": 1})
    assert call(places, *words) == 130
    job = Store(places.queue).get(1)
    assert (job.state, job.reason) == ("cancelled", "cancelled on request")


def test_a_cancelled_flow_names_each_step_once(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "".join(f'[[spec.steps]]\nname = "step-{number}"\npreset = "story"\n' for number in range(12))
    (places.presets / "many.toml").write_text(f'kind = "flow"\ntitle = "Many"\n{steps}')
    ctrl_c_after(monkeypatch, adding, "add")
    assert call(places, "run", "many") == 130
    said = capsys.readouterr()
    lines = [line.strip() for line in (said.out + said.err).splitlines()]
    assert [sum(line.startswith(f"step-{number}:") for line in lines) for number in range(12)] == [1] * 12
    assert "12 steps" in said.err


@pytest.mark.parametrize(("words", "may"), [(("--hand-over",), True), ((), False)])
def test_bench_may_be_handed_the_device_of_a_server(
    places: Places, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], may: bool
) -> None:
    ctrl_c_after(monkeypatch, adding, "add")
    assert call(places, "bench", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", *words) == 130
    assert Store(places.queue).get(1).hand_over is may


def test_what_is_only_queued_stays_and_says_so(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrl_c_after(monkeypatch, adding, "add")
    assert call(places, "jobs", "add", "story") == 130
    said = capsys.readouterr()
    assert Store(places.queue).get(1).state == "queued" and said.out.startswith("1 story: queued")
    assert "`vlmconsole jobs cancel 1`" in said.err


def test_two_are_noted_a_third_is_raised_and_the_old_handler_comes_back(places: Places) -> None:
    with pytest.raises(KeyboardInterrupt), interruptions() as noted:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
    assert len(noted) == 3 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptions():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_silence_costs_no_file_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is asked for again and again."""
    monkeypatch.setattr(state, "quiet", state.quiet)
    with (tmp_path / "said").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        before = open_files()
        hush(), hush()
        assert open_files() == before
        file.write("nobody reads this")
    assert (tmp_path / "said").read_text() == ""


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())

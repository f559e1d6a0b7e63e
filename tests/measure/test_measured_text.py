"""What `bench` and `runs show` say of a measurement: one block of figures, their conditions, words for fields."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from folders import DATA
from refusals import mentions
from test_hostile_runs import folder, told

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import make_profile
from vlmconsole.measure.bench import MeasuredServer, conditions_of
from vlmconsole.measure.machine import hardware
from vlmconsole.measure.machine_load import busy, host_load, load_now
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import distribution
from vlmconsole.system.machine import machine_line, usable_cores

RECORDED = DATA / "runs"


def recorded(home: Path, name: str, **summary: Any) -> RunFolder:
    run = RunFolder(shutil.copytree(RECORDED / name, home / "runs" / f"20261129-235032-{name}-9695"))
    if summary:
        run.write_json("summary.json", {**run.read_json("summary.json"), **summary})
    return run


def shown(capsys: pytest.CaptureFixture[str], home: Path, run: RunFolder) -> str:
    code, said = told(capsys, "--home", str(home), "runs", "show", run.name)
    assert code == 0
    return said


def test_show_has_the_figures_that_bench_prints_with_their_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(capsys, tmp_path, recorded(tmp_path, "bench"))
    lines = [line.split() for line in said.splitlines()]
    assert ["TTFT", "138", "ms", "159", "ms", "6"] in lines and ["E2E", "146", "ms", "177", "ms", "6"] in lines
    assert "p95" in said and "(n = 6 < 60)" in said
    assert "throughput 26.0 tok/s, 13.02 requests/s" in said
    under = next(line for line in said.splitlines() if line.startswith("under: "))
    assert "engine mlx-vlm · engine version 0.7.10 · model tiny-qwen2.5-vl · precision float32" in under
    assert "client concurrency C 2 · running limit B 4 · prefix cache off" in under
    assert "throughput_tok_s" not in said and "itl_per" not in said  # no raw field


def test_settings_are_shown_as_a_preset_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, tmp_path, recorded(tmp_path, "cb-grid-tiny"))
    assert "  grid = { running_limit = [1, 4], concurrency = [1, 2, 4] }" in said.splitlines()
    assert '  server = "demo"' in said.splitlines()
    settings = [line for line in said.splitlines() if line.startswith("  ") and " = " in line]
    assert settings and not [line for line in settings if "None" in line or line.endswith(("= ", "[]", '""'))]


def test_a_sweep_says_what_its_cells_share_and_where_they_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(capsys, tmp_path, recorded(tmp_path, "cb-grid-tiny"))
    shared = next(line for line in said.splitlines() if line.startswith("all under: "))
    assert "hardware two cores · engine mlx-vlm · engine version 0.7.10" in shared
    assert "image size 168x112" in shared and "prefix cache off" in shared and "concurrency" not in shared
    differing = next(line for line in said.splitlines() if "differ in: " in line)
    assert mentions(differing, "client concurrency C", "running limit B") and "prefix cache" not in differing
    assert "below 60 requests" in said


def test_a_cache_probe_says_the_conditions_of_its_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, tmp_path, recorded(tmp_path, "cache-probe-text"))
    assert "engine mlx-vlm" in said and "differ in: prefix cache" in said


@pytest.mark.parametrize("odd", [None, 3, "x", ["x"], {"p50": "soon"}, {"n": "\x1b[2J"}])
def test_odd_figures_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: object) -> None:
    summary = dict.fromkeys(("n", "ttft_s", "lag", "finish_reasons", "set_aside", "first_failures", "host"), odd)
    conditions = {"hardware": "\x1b[2Jhere", "notes": odd, "model": odd, "input_tokens": odd}
    run = folder(tmp_path, **{"summary.json": {**summary, "valid": True}, "conditions.json": conditions})
    said = shown(capsys, tmp_path, run)
    assert "hardware" in said and "\x1b[2J" not in said


def server(device: str | None = None) -> MeasuredServer:
    profile = make_profile({"name": "x", "engine": "openai", "base_url": "http://127.0.0.1:1/v1"}, "x")
    return MeasuredServer(profile, EffectiveSettings(engine="openai", device=device), "m")


def summary_of(**changes: Any) -> Any:
    usual = {"finish_reasons": {}, "models": {}, "input_tokens": 1, "output_tokens": 1, "n": 1}
    return SimpleNamespace(**{**usual, **changes})


def test_conditions_are_words() -> None:
    one = conditions_of(BenchSettings(), server(), summary_of(finish_reasons={"stop": 20, "length": 1}), None, None)
    (note,) = one.notes
    assert mentions(note, "stop 20", "length 1") and one.warm_up.startswith("1 request ")
    two = conditions_of(BenchSettings(warm_up=2), server(), summary_of(), None, None)
    assert two.warm_up.startswith("2 requests ") and two.notes == ()


def test_the_same_machine_has_one_name_in_chat_and_measurement() -> None:
    on_cpu = server("CPU")
    assert on_cpu.settings.this_machine == machine_line()
    assert conditions_of(BenchSettings(), on_cpu, summary_of(), None, None).hardware == machine_line()
    assert hardware().endswith(machine_line())
    assert machine_line(["Metal"]) == f"Metal, {machine_line()}" == server("Metal").settings.this_machine
    assert server().settings.this_machine is None


def test_a_p95_of_few_values_says_so_in_words() -> None:
    few, enough = distribution([0.1] * 20), distribution([0.1] * 60)
    assert few is not None and few.flag is not None and mentions(few.flag, "p95", "n = 20 < 60")
    assert enough is not None and enough.flag is None


def test_a_busy_machine_is_a_remark_and_nothing_is_said_of_an_idle_or_unknown_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = {"host": {"before": 13.04, "after": 1.5, "cores": 2}}
    said = busy(loud)
    assert mentions(said, "load 13.0", "1.5", "2 cores")
    for calm in ({}, {"host": None}, {"host": {"before": 2.0, "after": 0.3, "cores": 2}}, {"host": {"before": 9}}):
        assert busy(calm) == ""
    assert said in shown(capsys, tmp_path, recorded(tmp_path, "bench", **loud))


def test_the_load_is_recorded_as_the_system_has_it() -> None:
    host = host_load(load_now())
    assert host.cores == usable_cores()
    assert host.before is not None and host.after is not None and host.before >= 0
    assert json.loads(json.dumps(vars(host)))

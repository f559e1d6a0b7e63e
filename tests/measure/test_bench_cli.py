"""`vlmconsole bench`, `calibrate` and `runs compare` as scripts call them, on real processes and sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import check_nouns, refused

from vlmconsole.measure.calibration.calibrate import LIMIT_S, calibrate, read_calibration
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.inputs import InputError, InputRecipe, fit, picture, prompt
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.folder import RunFolder

PATIENT = "lag_limit_ms=10000"  # other programs share the machine that tests run on


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with running(Schedule(role_ms=1, ttft_ms=20, itl_ms=3, tokens=16)) as found:
        yield found


def call(home: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "vlmconsole", "--home", str(home), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_bench_measures_writes_its_run_and_compares(server: Reference, tmp_path: Path) -> None:
    common = ["--base-url", server.base_url, "--model", "reference", "--output-tokens", "8", "--set", PATIENT]
    code, first, said = call(tmp_path, "bench", "-c", "2", "-n", "6", "--image", "448x336", *common)
    assert code == 0, said
    summary, conditions = first["summary"], first["conditions"]
    assert summary["ttft_s"].keys() >= {"p50", "p95", "n"}
    assert (summary["ttft_s"]["n"], summary["failures"], summary["valid"]) == (6, 0, True)
    assert summary["ttft_s"]["p50"] > 0.019
    assert summary["tpot_s"]["p50"] > 0.001
    assert summary["e2e_s"]["p50"] > summary["ttft_s"]["p50"]
    assert summary["throughput_tok_s"] > 0
    assert summary["output_tokens"] == 8
    assert (conditions["client_concurrency"], conditions["running_limit"]) == (2, None)
    assert (conditions["route"], conditions["image"], conditions["n"]) == ("loopback", "448x336", 6)
    assert "measuring reference" in said

    run = RunFolder(tmp_path / "runs" / first["run"])
    assert run.state()["state"] == "done"
    fields = {"model", "max_tokens", "temperature", "stream", "stream_options", "messages"}
    assert run.read_json("request.json", {}).keys() == fields  # nothing that a server was not meant to get
    rows = list(run.read_jsonl("requests.jsonl"))
    assert len(rows) == 6 + 2
    assert sum(row["counted"] for row in rows) == 6
    kept = run.file("request.json").read_text()
    assert "sha256:" in kept
    assert "base64" not in kept
    assert not list(run.path.glob(".cell-*"))

    code, second, said = call(tmp_path, "bench", "-c", "1", "-n", "6", "--image", "448x336", *common)
    assert code == 0, said
    code, refused, _ = call(tmp_path, "runs", "compare", first["run"], second["run"])
    assert code == 3
    assert [one["key"] for one in refused["differs"]] == ["client_concurrency"]
    code, compared, _ = call(tmp_path, "runs", "compare", first["run"], second["run"], "--only", "client_concurrency")
    assert code == 0
    assert compared["comparable"]
    assert "ttft_s.p50" in {row["key"] for row in compared["figures"]}
    assert compared["not_intact"] == []
    with run.file("summary.json").open("a") as file:
        file.write("\n")
    _, compared, _ = call(tmp_path, "runs", "compare", first["run"], second["run"])
    (altered,) = compared["not_intact"]
    check_nouns(altered, run.name, "summary.json")


def test_a_server_that_fails_is_a_failure_with_its_reason(server: Reference, tmp_path: Path) -> None:
    words = ["-n", "3", "--base-url", server.fault_url("http500"), "--model", "reference", "--set", PATIENT]
    code, result, _ = call(tmp_path, "bench", *words)
    assert code == 1
    assert result["summary"]["failures"] == 3
    assert result["summary"]["failure_kinds"] == {"http error": 3}
    assert "asked to fail" in result["summary"]["first_failures"][0]


def test_wrong_settings_are_bad_usage_and_name_the_key(tmp_path: Path) -> None:
    code, result, said = call(tmp_path, "bench", "--image", "big", "--base-url", "http://127.0.0.1:1/v1")
    assert code == 2
    assert "image" in said
    assert "WIDTHxHEIGHT" in result["error"]["message"]


def test_calibrate_states_the_error_and_results_carry_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="calibrate", preset="c", spec={}, title="c", home=tmp_path)
    schedule = Schedule(role_ms=2, ttft_ms=20, itl_ms=5, tokens=6)
    found = calibrate(run, steps=((1, 6), (4, 12)), schedule=schedule)
    assert [(step.concurrency, step.n, step.failures) for step in found.steps] == [(1, 6, 0), (4, 12, 0)]
    for step in found.steps:
        assert step.ttft_error_s is not None
        assert step.ttft_error_abs_p95_s is not None
        assert step.tpot_error_s is not None
        assert step.ttft_error_s.min > -0.005  # never before it was written, but for the server's own stamp
        assert step.trusted == (step.ttft_error_abs_p95_s <= LIMIT_S and step.why is None)
    trusted = [step.concurrency for step in found.steps if step.trusted]
    assert found.trusted_to in (None, *trusted)
    path = tmp_path / "calibration.json"
    found.save(path)
    said = read_calibration(path, 2)
    assert said is not None
    assert "at C=4" in said
    assert ("NOT trusted" in said) == (found.trusted_to is None or found.trusted_to < 2)
    assert "C=64" in (read_calibration(path, 64) or "")
    assert read_calibration(tmp_path / "none.json", 1) is None


def test_inputs_are_of_the_wanted_size_and_never_the_same_twice() -> None:
    one, other, again = picture("cell", 0, 448, 336), picture("cell", 1, 448, 336), picture("cell", 0, 448, 336)
    assert one.size == one.image().size == (448, 336)
    assert one.sha256 == again.sha256
    assert one.pixel_sha256 != other.pixel_sha256
    prompts = {prompt(cell, number, 20) for cell in ("a", "b") for number in range(-4, 500)}
    assert len(prompts) == 2 * 504
    assert len({len(text.split()) for text in prompts}) == 1
    openings = {" ".join(text.split()[:6]) for text in prompts}
    assert len(openings) > 990  # nearly none shares its first six words


@pytest.mark.parametrize("per_word", [1.0, 1.31, 2.0])
def test_a_prompt_is_fitted_to_the_length_that_the_server_counts(per_word: float) -> None:
    asked = []

    def count(words: int, probe: int) -> int:
        asked.append((words, probe))
        return 143 + int(words * per_word)

    found = fit(count, 1735)
    assert abs(found.tokens - 1735) <= per_word
    assert found.exact == (found.tokens == 1735)
    assert len(asked) <= 8
    assert len({probe for _, probe in asked}) == len(asked)  # no probe repeats another's prompt
    with pytest.raises(InputError, match="143 tokens"):
        fit(count, 100)


@pytest.mark.parametrize("per_word", [1.0, 1.31, 2.0, 3.5])
@pytest.mark.parametrize("context", [1735, 1736, 1800, 4096])
def test_a_guess_past_the_context_is_no_end(per_word: float, context: int) -> None:
    def count(words: int, probe: int) -> int | str:
        tokens = 143 + int(words * per_word)
        return tokens if tokens <= context else f"{tokens} tokens are more than {context}"

    assert abs(fit(count, 1735).tokens - 1735) <= per_word


@pytest.mark.parametrize(("context", "code"), [(1000, "prompt-long"), (100, "prompt-uncounted")])
def test_a_length_past_the_context_is_refused_with_the_server_s_reason(context: int, code: str) -> None:
    def count(words: int, probe: int) -> int | str:
        return 143 + 2 * words if 143 + 2 * words <= context else f"longer than {context}"

    with refused(code, f"longer than {context}", error=InputError):
        fit(count, 1735)


def test_a_cell_without_a_picture_and_with_one_say_it_in_the_record() -> None:
    recipe = InputRecipe("cell", {"model": "m"}, (56, 28))
    text = json.dumps(recipe.record(3))
    assert "sha256:" in text
    assert json.loads(recipe.body(3).parts[0])["messages"][0]["content"][0]["image_url"]["url"].startswith(
        "data:image/png"
    )
    assert BenchSettings(image="448×336").image_size == (448, 336)
    assert BenchSettings(concurrency=9).warm_ups == 4
    assert BenchSettings(warm_up=0).warm_ups == 0

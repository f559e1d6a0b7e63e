"""Functions of the user's own: what they are given, and that nothing they do ends more than one answer."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from refusals import refused

from vlmconsole.scoring.function_prints import PRINTED
from vlmconsole.scoring.function_process import FunctionFailure
from vlmconsole.scoring.python_scorer import PythonFileError, PythonScorer, python_scorer, score_of
from vlmconsole.scoring.registry import UnknownScorerError, find_scorer, identity

SOURCE = """
import os, sys, time

def score(prediction, truth, bonus=0.0):
    print("printed", flush=True)
    if prediction == "raise":
        raise ValueError("no \\x1b[31m")
    if prediction == "hang":
        while True:
            pass
    if prediction == "exit":
        sys.exit(3)
    if prediction == "die":
        os._exit(4)
    if prediction == "long":
        return {"score": 1, "text": "x" * 2_000_000}
    values = {"nan": float("nan"), "big": 3, "negative": -0.1, "text": "1", "none": None, "set": {1}, "empty": {}}
    if prediction in values:
        return values[prediction]
    return {"score": min(1.0, (prediction == truth) * 0.5 + bonus), "length": len(prediction)}

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    return solution_str == ground_truth and data_source == "shop" and extra_info["uid"] == "u1" and rest == {"k": 1}

def demanding(prediction, truth, wanted):
    return 1.0
"""


@pytest.fixture
def scorer(tmp_path: Path) -> PythonScorer:
    path = tmp_path / "reward.py"
    path.write_text(SOURCE)
    return python_scorer(f"python:{path}:score")


def test_a_function_gets_answer_truth_and_options(scorer: PythonScorer) -> None:
    score = scorer.score("a", "a", {"bonus": 0.25})
    assert (score.score, score.correct, score.valid, dict(score.details)) == (0.75, False, True, {"length": 1})
    assert scorer.score("a", {"any": ["JSON"]}).score == 0


@pytest.mark.parametrize(
    ("prediction", "reason"),
    [
        ("raise", "ValueError"),
        ("hang", "longer than 1 s"),
        ("exit", "SystemExit"),
        ("die", "exit code 4"),
        ("long", "megabyte"),
        ("nan", "nan"),
        ("big", "3"),
        ("negative", "-0.1"),
        ("text", "'1'"),
        ("none", "no score"),
        ("set", "TypeError"),
        ("empty", "no score"),
    ],
)
def test_what_a_function_does_wrong_fails_its_answer_alone(scorer: PythonScorer, prediction: str, reason: str) -> None:
    score = scorer.judge(prediction, "a", {}, limit=1.0)
    assert (score.score, score.correct, score.valid) == (0.0, False, False) and reason in score.reason
    assert score.details["failed"] and scorer.score("a", "a").score == 0.5, "the next answer is scored again"


@pytest.mark.parametrize("key", ["correct", "valid"])
@pytest.mark.parametrize("value", ["no", "false", "", None, 2, 0.5, [], float("nan"), 10**400])
def test_a_truth_value_in_another_form_fails_its_answer(key: str, value: Any) -> None:
    with pytest.raises(FunctionFailure, match=key):
        score_of({"score": 1, key: value})


@pytest.mark.parametrize("value", [True, False, 1, 0, 1.0, 0.0])
def test_truth_values_and_verls_numbers_for_them_are_read(value: float) -> None:
    score = score_of({"score": 0.5, "correct": value, "valid": value})
    assert score.correct is score.valid is bool(value)


def test_an_unknown_option_and_a_parameter_that_nothing_fills_are_named(scorer: PythonScorer, tmp_path: Path) -> None:
    assert "bonnus" in scorer.score("a", "a", {"bonnus": 1}).reason
    demanding = find_scorer(f"{tmp_path}/reward.py:demanding")
    assert "wanted" in demanding.score("a", "a").reason and demanding.score("a", "a", {"wanted": 1}).correct


def test_a_function_written_for_verl_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(SOURCE)
    scorer = python_scorer(f"python:{tmp_path}/reward.py:compute_score")
    assert scorer.judge("x", "x", {"k": 1}, data_source="shop", extra_info={"uid": "u1"}).correct
    assert not scorer.judge("x", "x", {"k": 1}, data_source="other", extra_info={"uid": "u1"}).correct


def test_the_identity_follows_the_source_and_not_the_folder(tmp_path: Path) -> None:
    names = []
    for folder, source in (("a", SOURCE), ("b", SOURCE), ("c", SOURCE + "\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "reward.py").write_text(source)
        names.append(identity(f"python:{tmp_path}/{folder}/reward.py:score"))
    assert names[0] == names[1] != names[2] and str(tmp_path) not in names[0]


def test_a_file_that_was_changed_since_is_not_run(scorer: PythonScorer) -> None:
    scorer.path.write_text(SOURCE + "\n# other\n")
    assert "changed" in scorer.score("a", "a").reason
    assert find_scorer(scorer.name).score("a", "a").score == 0.5, "looked up anew it is another scorer"


def test_finding_a_function_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef score(prediction, truth): return 1\n")
    scorer = find_scorer(f"python:{path}:score")
    assert identity(scorer) and not scorer.check("x") and not (tmp_path / "ran").exists()
    assert scorer.score("a", "b").correct and (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "source", "code"),
    [
        ("python:reward.py", "", "function-invalid"),
        ("python:reward.py:no such", "", "function-invalid"),
        ("python:missing.py:score", "", "function-unreadable"),
        ("python:reward.py:score", "def score(:", "function-unreadable"),
        ("python:reward.py:score", "def other(): ...", "function-missing"),
        ("reward.py:score", "import os", "function-missing"),
        ("reward.py:score", "def other():\n    def score(prediction): ...", "function-missing"),
        ("reward.py:score", "async def score(prediction): ...", "function-async"),
        ("reward.py:score", "if True:\n    async def score(prediction): ...", "function-async"),
    ],
)
def test_a_file_without_the_function_is_refused_unrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, code: str
) -> None:
    (tmp_path / "reward.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with refused(code, error=PythonFileError):
        find_scorer(name)


@pytest.mark.parametrize(
    "source",
    [
        "if True:\n    def score(prediction): return 1",
        "try:\n    import no_such\nexcept ImportError:\n    def score(prediction): return 1",
        "try:\n    async def score(prediction): ...\nfinally:\n    def score(prediction): return 1",
        "for n in [1]:\n    with open(__file__):\n        score = lambda prediction: n",
        "from math import *\nif True:\n    score = lambda prediction: cos(0)",
    ],
)
def test_a_function_defined_on_a_condition_is_one(tmp_path: Path, source: str) -> None:
    (tmp_path / "reward.py").write_text(source)
    assert find_scorer(f"python:{tmp_path}/reward.py:score").score("a", "a").correct


def test_a_function_that_an_import_of_everything_brings_is_known_when_it_runs(tmp_path: Path) -> None:
    (tmp_path / "helper_of_reward.py").write_text("async def late(prediction): ...\ndef score(prediction): return 1")
    (tmp_path / "reward.py").write_text("from helper_of_reward import *")
    assert find_scorer(f"python:{tmp_path}/reward.py:score").score("a", "a").correct
    assert "async" in find_scorer(f"python:{tmp_path}/reward.py:late").score("a", "a").reason


def test_what_a_function_prints_is_passed_on_up_to_a_limit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reward.py"
    path.write_text(
        "import os, sys\ndef score(prediction):\n    print('word ' + 'x' * 10_000_000, file=sys.stderr)\n"
        "    os.system('head -c 1000000 /dev/zero | tr \"\\\\0\" y')\n    if prediction == 'die':\n"
        "        os._exit(1)\n    return 1"
    )
    scorer = python_scorer(f"python:{path}:score")
    assert [scorer.score(answer, "").correct for answer in ("a", "die", "b")] == [True, False, True]
    scorer.process.close()
    err = capfd.readouterr().err
    assert err.startswith("word x") and PRINTED <= len(err) < PRINTED + 200 and err.count("left out") == 1


def test_the_last_words_of_a_function_arrive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def score(prediction):\n    print(prediction)\n    return 1")
    scorer = python_scorer(f"python:{path}:score")
    assert scorer.score("seen", "").correct and scorer.score("last", "").correct
    scorer.process.close()
    assert "last" in capfd.readouterr().err


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(SOURCE)
    path.chmod(0o666)
    with refused("function-unsafe", "chmod", error=PythonFileError):
        find_scorer(f"python:{path}:score")


def test_the_process_ends_with_its_scorer(scorer: PythonScorer) -> None:
    scorer.score("a", "a")
    child: Any = scorer.process._child
    scorer.process.close()
    until = time.monotonic() + 5
    while time.monotonic() < until and os.path.exists(f"/proc/{child.pid}/stat"):  # noqa: PTH110
        time.sleep(0.02)
    assert child.poll() is not None


def test_many_functions_hold_few_processes(tmp_path: Path) -> None:
    path, pids = tmp_path / "reward.py", []
    for version in range(12):
        path.write_text(
            f"import os\ndef score(prediction, truth):\n    return {{'score': 1, 'pid': os.getpid()}}\n# {version}"
        )
        pids.append(int(find_scorer(f"python:{path}:score").score("a", "a").details["pid"]))
    gc.collect()
    living = [pid for pid in pids if psutil.pid_exists(pid)]
    assert len(set(pids)) == 12 and len(living) <= 8 and pids[-1] in living


def test_functions_stand_among_the_scorers_that_there_are() -> None:
    with pytest.raises(UnknownScorerError, match=r"python:FILE\.py:FUNCTION"):
        find_scorer("pyhton")

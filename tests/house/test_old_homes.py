"""A lab home written by version 0.1.0 (tests/data/homes) is read, verified, judged, compared and continued.

It was made by that version's commands on the bundled model: a small dataset and a plan frozen for it, a training, its
evaluation (PASS) and audit, a longer training, a cancelled one, three sweeps (one INVALID), a smoke, a chat with an
image and a draft. It has been moved since, as homes are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import folders
import pytest

from vlmconsole.gates.plan import load_plan, plan_names

ARCHIVE = folders.DATA / "homes" / "0.1.0.tar.xz"
JUDGED = "20261201-043213-eval-sft-tiny-f353"
CANCELLED = "20261201-043232-sft-expand-tiny-ce14"
PLAN = "f4b7bfcbc3c4197dcac9e1abc10715606a283ce5c2c56f1da9e82614f2bd87b8"
DATA = "842aac581c3afa4be7bcb0550635b62aecefab634745128708d43f56fbbc4a72"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "lab-0.1.0"


def asked(home: Path, *words: str, code: int = 0) -> Any:
    """What a command says of that home, as JSON."""
    command = [sys.executable, "-P", "-m", "vlmconsole", *words, "--home", str(home), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stdout[-500:] + ended.stderr[-2000:]
    return json.loads(ended.stdout)


def test_it_is_intact(home: Path) -> None:
    value = asked(home, "verify")
    assert value["intact"] and value["ledger"]["entries"] == 18 and value["ledger"]["broken"] is None
    assert len(value["runs"]) == 10 and {run["status"] for run in value["runs"]} == {"intact"}


def test_its_evaluation_is_judged_as_it_was(home: Path) -> None:
    value = asked(home, "gates", "check", JUDGED)
    assert (value["verdict"], value["plan_sha256"]) == ("PASS", PLAN)
    assert [gate["measured"] for gate in value["gates"]] == [1.0, 0.0]
    (plan,) = asked(home, "gates", "list")["plans"]
    assert (plan["sha256"], plan["fault"], plan["runs"][0]["verdict"]) == (PLAN, "", "PASS")


def test_its_sweeps_and_trainings_are_compared_as_they_were(home: Path) -> None:
    sweeps = asked(home, "runs", "compare", "20261201-043242", "20261201-043253")
    assert sweeps["comparable"] and [cell["comparable"] for cell in sweeps["cells"]] == [True] * 4
    trainings = asked(home, "runs", "compare", "aa46", "0736", code=3)
    assert [condition["key"] for condition in trainings["differs"]] == ["epochs", "dev_epochs"]


def test_its_books_data_and_chats_are_read(home: Path) -> None:
    jobs = asked(home, "jobs", "list", "--all")["jobs"]
    assert [(job["id"], job["state"]) for job in jobs if job["state"] != "done"] == [(4, "cancelled")]
    assert len(jobs) == 10
    assert {job["id"]: job["verdict"] for job in jobs if job["verdict"]} == {2: "PASS", 6: "INVALID"}
    assert asked(home, "data", "check", "small")["ok"]
    (chat,) = asked(home, "chats", "list")["chats"]
    assert (chat["title"], chat["messages"]) == ("What shape is red?", 4)
    adapters = {adapter["name"]: adapter for adapter in asked(home, "adapters", "list")["adapters"]}
    assert adapters[f"{CANCELLED}/epoch-1"]["provenance"]["data"] == {"small": DATA}
    run = asked(home, "runs", "show", "f732")
    assert run["conditions"]["out4"]["engine_version"] == "0.7.10"


def test_shipped_plans_hash_as_they_did() -> None:
    """A changed field name or default would orphan every plan that was frozen from these."""
    known = json.loads((ARCHIVE.parent / "0.1.0-plans.json").read_text())
    assert {name: load_plan(name).sha256 for name in plan_names()} == known


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on(home: Path) -> None:
    job = asked(home, "jobs", "retry", "4")["id"]
    ended = asked(home, "jobs", "wait", str(job))
    assert ended["state"] == "done"
    (run,) = [run for run in asked(home, "runs", "list")["runs"] if run["attempt"] == 2]
    assert asked(home, "verify", run["run"])["intact"]

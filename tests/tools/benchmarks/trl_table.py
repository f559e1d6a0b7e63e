"""Ours and TRL's training step in turns, as a table: seconds a step and resident memory.

    python tests/tools/benchmarks/trl_table.py --trl PYTHON [--steps 30] [--warm-up 5] [--rounds 3] [--json OUT]

PYTHON is the interpreter of an environment of TRL's own:

    python -m venv ENV
    ENV/bin/pip install torch==2.13.0 transformers==5.24.0 trl==1.16.0 peft==0.21.0 datasets accelerate
    ENV/bin/pip install --no-deps torchvision==0.28.0

Every measurement is a process of its own with one thread; each round begins with the other side, so that neither
always has the warmer machine. What the machine was doing besides stands in the table as its load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STEP = Path(__file__).with_name("trl_step.py")
PAIRS = {"SFT": ("sft", "trl-sft"), "GRPO": ("grpo", "trl-grpo")}
LONGEST_S = 900.0
MIB = 2**20


def measure(arm: str, python: str, steps: int, warm_up: int) -> dict[str, Any]:
    """One arm in its own process. Ends this program with the arm's last words when it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory(prefix="trl-step-") as scratch:
        environment["TMPDIR"] = environment["HF_HOME"] = scratch
        command = [python, str(STEP), arm, str(steps), str(warm_up)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        sys.exit(f"{arm} under {python} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**record, "load1": round(os.getloadavg()[0], 1)}


def line(task: str, side: str, taken: list[dict[str, Any]], warm_up: int) -> str:
    """One row: the median of all counted steps of all rounds, each round's own median, the largest memory."""
    steps = [value for one in taken for value in one["steps_s"][warm_up:]]
    cpu = [value for one in taken for value in one["steps_cpu_s"][warm_up:]]
    rounds = ", ".join(f"{one['median_s']:.3f}" for one in taken)
    peak, ready = (max(one[key] for one in taken) / MIB for key in ("peak_bytes", "ready_bytes"))
    tokens = taken[0].get("answer_tokens")
    work = f"{tokens} tokens an answer" if tokens else f"first loss {taken[0]['losses'][0]:.4f}"
    return (
        f"| {task} | {side} | {len(steps)} | {statistics.median(steps):.3f} s | {rounds} "
        f"| {statistics.median(cpu):.3f} s | {peak:.0f} MiB "
        f"| {peak - ready:.0f} MiB | {work} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", required=True, help="the Python of TRL's environment")
    parser.add_argument("--steps", type=int, default=30, help="counted ones, beside the warm-up")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also keep every record here")
    asked = parser.parse_args()
    records: dict[str, list[dict[str, Any]]] = {arm: [] for pair in PAIRS.values() for arm in pair}
    for number in range(asked.rounds):
        for pair in PAIRS.values():
            for arm in pair if number % 2 == 0 else pair[::-1]:
                python = asked.trl if arm.startswith("trl-") else sys.executable
                record = measure(arm, python, asked.warm_up + asked.steps, asked.warm_up)
                records[arm].append(record)
                print(f"round {number + 1} {arm}: {record['median_s']} s, load {record['load1']}", file=sys.stderr)
    if asked.json:
        asked.json.write_text(json.dumps(records, indent=1), encoding="utf-8")
    version = records["trl-sft"][0]["trl"]
    print(
        "| work | whose | n | median step | each round | CPU a step | peak RSS | of it in the steps | the same work |"
    )
    print("|---|---|--:|--:|---|--:|--:|--:|---|")
    for task, (own, other) in PAIRS.items():
        print(line(task, "ours", records[own], asked.warm_up))
        print(line(task, f"TRL {version}", records[other], asked.warm_up))
    loads = [one["load1"] for taken in records.values() for one in taken]
    print(f"\nLoad while measuring: {min(loads)} to {max(loads)}.")


if __name__ == "__main__":
    main()

"""Recorded runs of real measurements put into a lab home, and a run whose every text wants to take over the page."""

from __future__ import annotations

import shutil
from pathlib import Path

from folders import DATA
from hostile import HOSTILE

from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

RECORDED = DATA / "runs"
GRID, PROBE, BENCH = (
    "20261129-234935-cb-grid-tiny-0b72",
    "20261129-235002-cache-probe-text-c7cf",
    "20261129-235032-bench-9695",
)
FOLDERS = {GRID: "cb-grid-tiny", PROBE: "cache-probe-text", BENCH: "bench"}
ATTACK = "</title></svg><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def lab_with_runs(home: Path, *names: str) -> Places:
    """A lab home with copies of the recorded runs, sealed. Without names: all of them."""
    places = Places(home).ensure()
    for name in names or (GRID, PROBE, BENCH):
        shutil.copytree(RECORDED / FOLDERS[name], places.runs / name)
        Ledger(places.ledger).seal(RunFolder(places.runs / name))
    return places


def failed_run(places: Places) -> RunFolder:
    """A sweep that failed: one cell INVALID, one that never ran, and a cause."""
    run = RunFolder.create(
        places.runs, kind="sweep", preset="grid", spec={"server": "demo"}, title="Died", home=places.home,
        name="20261129-235100-grid-dead",
    )  # fmt: skip
    recorded = next(RunFolder(RECORDED / "cb-grid-tiny").read_jsonl("cells.jsonl"))
    lag = "client lag p99 31 ms, over the limit of 20 ms"
    run.append_jsonl("cells.jsonl", {**recorded, "name": "late", "state": "invalid", "why": lag})
    run.append_jsonl("cells.jsonl", {"name": "dead", "settings": {}, "state": "failed", "why": "the server ended"})
    run.log.write_text("loading\nout of memory\n")
    run.set_state("failed", "the server exited with 137", started=1_795_996_260.0, ended=1_795_996_270.0)
    return run


def hostile_run(places: Places) -> RunFolder:
    """Hostile text wherever a run folder holds text."""
    every = [text[:400] for _, text in HOSTILE]
    run = RunFolder.create(
        places.runs, kind=ATTACK, preset="hostile", spec={ATTACK: ATTACK, "list": every}, title=ATTACK,
        home=places.home, name="20261129-235200-hostile-0000",
    )  # fmt: skip
    recorded = next(RunFolder(RECORDED / "cb-grid-tiny").read_jsonl("cells.jsonl"))
    for text in (ATTACK, *every):
        run.append_jsonl("cells.jsonl", {**recorded, "name": text, "why": text, "work": text})
        run.append_jsonl("samples.jsonl", {"id": text, "answer": text})
        run.append_jsonl("rollouts.jsonl", {"step": 1, "uid": text, "answer": text, "truth": text, "picture": text})
    bar = {"cell": ATTACK, "phase": "measured", "counted": True, "index": 0, "sent": 0.0, "first_text": 1, "done": 2}
    run.append_jsonl("requests.jsonl", bar)
    run.append_jsonl("pairs.jsonl", {"arm": ATTACK, "pair": 0, "cold": {"ttft_s": 1}, "warm": {"ttft_s": 0.5}})
    run.append_jsonl("training.jsonl", {"step": 1, ATTACK: 1.0})
    run.append_jsonl("training.jsonl", {"step": 2, ATTACK: 2.0})
    run.write_json("summary.json", {"verdict": ATTACK, "reasons": every, ATTACK: ATTACK})
    run.write_json("conditions.json", {ATTACK: {"model": ATTACK, "settings": {ATTACK: ATTACK}, "notes": [ATTACK]}})
    run.events.note(ATTACK, "warning")
    run.file("<img src=x onerror=alert(1)>.txt").write_text("x")
    run.log.write_text(ATTACK)
    run.set_state("failed", ATTACK, started=1_795_996_300.0, ended=1_795_996_301.0)
    return run


def tuned_run(places: Places) -> RunFolder:
    """A tuning in the form that its job writes: three cells, one dropped, and a choice that was not confirmed."""
    run = RunFolder.create(places.runs, kind="tune", preset="tune-tiny", spec={}, title="Tuning", home=places.home,
                           name="20261129-235300-tune-tiny-0000")  # fmt: skip
    recorded = next(RunFolder(RECORDED / "cb-grid-tiny").read_jsonl("cells.jsonl"))
    for number, name in enumerate(("small", "large", "dead")):
        cell = {**recorded, "name": name, "parameters": {"max_num_seqs": 2 + number}}
        cell["memory"] = {"peak_bytes": (160 + number) * 1024 * 1024}
        run.append_jsonl("cells.jsonl", cell if name != "dead" else {**cell, "state": "failed", "summary": None})
    choice = {"chosen": "small", "why": "lowest TTFT p95", "steps": ["1. usable: 2 of 3 cells"]}
    choice["dropped"] = {"dead": "failed: the server ended"}
    confirmation = {"state": "not confirmed", "said": ["throughput does not hold"]}
    confirmation["change"] = {"ttft_p95": 0.2616, "peak_bytes": -14397440}
    rule = {"throughput_floor": 0.95, "sha256": "5d" * 32}
    run.write_json("summary.json", {"verdict": "not confirmed", "choice": choice, "confirmation": confirmation,
                                    "rule": rule, "launch": ["server", "--max-num-seqs", "2"]})  # fmt: skip
    run.set_state("done", started=1_795_996_300.0, ended=1_795_996_301.0)
    return run

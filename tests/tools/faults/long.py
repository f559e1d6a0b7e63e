"""The long fault suite: `make faults`. Prints one line a round and a JSON summary; exit 1 when a book is wrong."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from chaos import Chaos, prepare_environment

from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, Job, NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places


def tmux_round(home: Path) -> str:
    """A job queued from inside tmux outlives the tmux server."""
    if shutil.which("tmux") is None:
        return "skipped: tmux is not installed"
    prepare_environment(home)
    places = Places(home).ensure()
    (places.presets / "probe.toml").write_text('kind = "probe_kind:KIND"\n[spec]\nsteps = 200\nseconds = 0.02\n')
    add = f"{sys.executable} -P -m vlmconsole --home {home} jobs add probe; sleep 600"
    subprocess.run(["tmux", "-L", "vlmconsole-faults", "-f", "/dev/null", "new-session", "-d", add], check=True)
    store, deadline = Store(places.queue), time.monotonic() + 120
    while not store.active() and time.monotonic() < deadline:
        time.sleep(0.1)
    subprocess.run(["tmux", "-L", "vlmconsole-faults", "kill-server"], check=True)
    assert process.running(places) is not None, "the supervisor died with tmux"
    while store.get(1).state != "done":
        assert time.monotonic() < deadline, store.get(1)
        time.sleep(0.1)
    return "done after its tmux server was killed"


def full_disk_round(home: Path) -> str:
    """A lab on a disk of 3 MB: the job that fills it fails with that reason, and the next ones run."""
    home.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", home], capture_output=True).returncode:
        return "skipped: mounting a tmpfs is not permitted"
    try:
        prepare_environment(home)
        places = Places(home).ensure()
        store = Store(places.queue)
        full = store.add(NewJob("full", "probe_kind:FILL", "Fills the disk", {}))
        after = store.add(NewJob("probe", "probe_kind:KIND", "Probe", {"steps": 2}, after=((full, "any"),)))
        process.ensure(places)
        deadline = time.monotonic() + 240

        def end_of(number: int) -> Job:
            while store.get(number).state not in FINAL:
                assert time.monotonic() < deadline, [(job.id, job.state, job.reason) for job in store.listing(True)]
                time.sleep(0.1)
            return store.get(number)

        first, second = end_of(full), end_of(after)
        assert first.state == "failed" and "disk is full" in (first.reason or ""), first
        # The disk is still full, so the next job may not have room either; but it ends, and says the same.
        assert second.state == "done" or "disk is full" in (second.reason or ""), second
        (Path(first.run or "") / "big.bin").unlink()  # a person makes room
        if second.state != "done":
            store.again(after)
            process.ensure(places)
        assert end_of(after).state == "done", store.get(after)
        while process.running(places) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        return f"failed with its reason: {first.reason}"
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=20_261_129)
    parser.add_argument("--minute", type=float, default=60.0, help="seconds that a long stop lasts")
    parser.add_argument("--pace", type=float, default=0.06, help="seconds that a step of a job takes")
    words = parser.parse_args()
    total: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="vlmconsole-faults-"))
    for name, round_ in (("tmux", tmux_round), ("full disk", full_disk_round)):
        print(f"{name}: {round_(root / name.replace(' ', '-'))}", flush=True)
    for number in range(words.rounds):
        home = root / f"round-{number}"
        prepare_environment(home)
        chaos = Chaos(
            home, words.seed + number, words.jobs, words.faults, minute=words.minute, pace=words.pace, consoles=True
        )
        figures = chaos.play()
        print(json.dumps(figures), flush=True)
        total["jobs"] += words.jobs
        total.update(figures["faults"])
    faults = sum(count for name, count in total.items() if name != "jobs")
    print(json.dumps({"jobs": total["jobs"], "faults": faults, "kinds": dict(total), "all books right": True}))
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())

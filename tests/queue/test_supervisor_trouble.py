"""One faulty job, record or moment must not stop the queue: it is said, kept to that job, and the rest goes on."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from folders import HELPERS
from refusals import mentions
from supervised import LONG, Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole.cli import main
from vlmconsole.jobs import closing
from vlmconsole.jobs.presets import Preset, PresetError
from vlmconsole.queue import adding, process
from vlmconsole.queue.machine_limits import PAUSE
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.queue.view import views
from vlmconsole.runs.folder import list_runs
from vlmconsole.runs.places import Places


def damage(store: Store, number: int, **columns: str) -> None:
    """Write into a row what no version of this program would."""
    with sqlite3.connect(store.path) as db:
        for name, value in columns.items():
            db.execute(f"UPDATE jobs SET {name}=? WHERE id=?", (value, number))
    db.close()


def test_damaged_rows_wait_with_a_sentence_and_the_others_run(lab: Lab) -> None:
    bad = {
        lab.add(steps=1): ({"options": "{torn"}, "damaged"),
        lab.add(steps=1): ({"devices": "[7]"}, "damaged (devices: "),
        lab.add(steps=1): ({"devices": '["cpu:two"]'}, "“cpu:two”: write cpu, cpu:2"),
        lab.add(steps=1): ({"not_before": "abc"}, "damaged (not_before: 'abc' "),
        lab.add(steps=1): ({"options": '{"backoff_s": "soon"}', "not_before": "9e99"}, ""),
    }
    for number, (columns, _) in bad.items():
        damage(lab.store, number, **columns)
    *_, last = bad
    spec, good = lab.add(steps=1), lab.add(steps=1)
    damage(lab.store, spec, spec="nothing like JSON")
    with sqlite3.connect(lab.store.path) as db:  # not UTF-8, and a word for all that is none
        db.execute("UPDATE jobs SET title=CAST(x'fffe' AS TEXT) WHERE id=?", (good,))
        db.execute("INSERT OR REPLACE INTO meta VALUES ('drained', 'not json')")
    db.close()
    assert lab.ends(good, last, spec) == ["done", "done", "failed"]
    assert "damaged (spec:" in (lab.store.get(spec).reason or "")
    shown = {one.job.id: one.why for one in views(lab.store, lab.places, lab.store.listing(True))}
    for number, (_, words) in bad.items():
        assert words in shown[number] and (number == last or "cancel it" in shown[number])
    assert lab.supervisor.idle()  # they wait for a person, and keep nobody up


def test_a_record_that_names_a_foreign_folder_touches_nothing_there(lab: Lab, tmp_path: Path) -> None:
    """A damaged record once had the supervisor clear away the folder that it named: outside the lab, whole."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "kept.txt").write_text("not ours")
    (outside / "job.json").write_text("{}")
    link = lab.places.runs / "link"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside, target_is_directory=True)
    named = [
        str(outside),
        str(lab.places.runs / ".." / ".." / "outside"),
        os.path.relpath(outside),
        str(link),
        str(lab.places.runs),
        str(lab.places.home),
    ]
    # Never tried with the supervisor itself: a fault in it would cost more than a red test.
    assert not any(lab.places.is_run(Path(name)) for name in (*named, "", ".", "/", "/etc", "..", "~"))
    assert lab.places.is_run(lab.places.runs / "20261130-120000-count-0000")
    before = {path: path.stat().st_mtime_ns for path in sorted(outside.rglob("*"))}
    for state in ("starting", "running"):
        numbers = {lab.add(steps=1): name for name in named}
        for number, name in numbers.items():
            damage(lab.store, number, state=state, run=name)
        lab.supervisor.tick()
        for number in numbers:
            job = lab.store.get(number)
            assert (job.state, "run folder" in (job.reason or "")) == ("lost", True), numbers[number]
    assert {path: path.stat().st_mtime_ns for path in sorted(outside.rglob("*"))} == before
    assert lab.places.runs.is_dir() and lab.places.queue.exists()


def test_devices_that_mean_nothing_are_refused_when_added(tmp_path: Path) -> None:
    for request in ("cpu:two", "gpu:all", "cpu:²"):
        wrong = Preset("count", "job_kinds:COUNT", "Counts", {}, queue={"devices": [request]})
        with pytest.raises(PresetError, match=r"“devices”.*write"):
            adding.plan(wrong, [], Places(tmp_path))


def test_a_start_that_breaks_unforeseen_is_that_jobs_failure(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real = Supervisor._start_locked

    def start(self: Supervisor, job: object, *rest: object) -> None:
        if getattr(job, "id", 0) == 1:
            raise ZeroDivisionError("of all things")
        real(self, job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Supervisor, "_start_locked", start)
    bad, good = lab.add(steps=1), lab.add(steps=1)
    assert lab.ends(bad, good) == ["failed", "done"]
    assert mentions(lab.store.get(bad).reason or "", "started", "ZeroDivisionError", "supervisor.log")
    out, err = capfd.readouterr()
    assert mentions(out, "job 1", "ZeroDivisionError") and "Traceback" in err
    assert lab.ends(lab.add(devices=("cpu:all",), steps=1)) == ["done"]  # nothing is left locked


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_start_without_descriptors_waits_and_is_no_failure(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """Once each start that met EMFILE or EAGAIN failed its job for good, one job every two seconds."""
    numbers = [lab.add(steps=1) for _ in range(3)]
    before, (_, hard), words = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE), set()
    for spare in range(12):  # it runs out at another step of the start each time
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + spare, hard))
        try:
            with contextlib.suppress(OSError, QueueError):  # the process around it waits and goes on
                lab.supervisor.tick()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        states = {lab.store.get(number).state for number in numbers}
        assert not states & {"failed", "lost"}, [lab.store.get(number).reason for number in numbers]
        if lab.supervisor.live:
            break
        lab.supervisor.tick()  # takes back what never began
        words |= {one.why for one in views(lab.store, lab.places, lab.store.waiting())}
        lab.store.set_meta(PAUSE, None)
    assert any("EMFILE" in why and "tries again in" in why for why in words), words
    assert lab.ends(*numbers) == ["done"] * 3
    assert len(list_runs(lab.places.runs)) == 3 and descriptors() <= before + 1
    assert "no process" in capfd.readouterr().out


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, "no"), OSError(errno.ENOMEM, "no"), MemoryError()])
def test_a_refused_fork_pauses_ever_longer_and_says_why(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real, refused = subprocess.Popen.__init__, [error] * 3

    def popen(self: object, *words: object, **more: object) -> None:
        if refused:
            raise refused.pop()
        real(self, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", popen)
    first, second = lab.add(steps=1), lab.add(steps=1)
    waits = []
    for _ in range(3):
        lab.until(lambda: lab.store.meta(PAUSE))
        waits.append(lab.store.meta(PAUSE)["until"] - time.time())
        lab.supervisor.tick()
        assert [lab.store.get(number).state for number in (first, second)] == ["queued"] * 2
        assert "tries again in" in views(lab.store, lab.places, [lab.store.get(first)])[0].why
        assert not lab.supervisor.idle()
        lab.store.set_meta(PAUSE, None)  # as when it is over
    assert waits[0] < waits[1] < waits[2]
    assert lab.ends(first, second) == ["done"] * 2 and lab.store.get(first).attempt == 1


def test_a_queue_whose_process_cannot_be_started_keeps_what_is_queued(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def popen(self: object, *words: object, **more: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\n')
    monkeypatch.setattr(subprocess.Popen, "__init__", popen)
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(places.home), "jobs", "add", "count"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "stays queued" in said and "jobs resume" in said
    assert Store(places.queue).get(1).state == "queued"


# Another user, who may read what is ours (this Python lies in our home, perhaps) but has no other privilege.
NOBODY = [
    "setpriv",
    "--reuid=65534",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="becomes another user: root, setpriv")
def test_a_real_limit_of_processes_is_waited_out() -> None:
    """The supervisor of a user who may have no process besides it; then the limit is raised."""
    with tempfile.TemporaryDirectory(prefix="vlmconsole-limit-") as folder:  # pytest's own is closed to others
        Path(folder).chmod(0o755)
        wait_out_a_limit(Path(folder))


def wait_out_a_limit(place: Path) -> None:
    home, locks = place / "home", place / "devices"
    for folder in (home, locks):
        folder.mkdir()
        os.chown(folder, 65534, -1)
    environment = os.environ | {
        "PYTHONPATH": str(HELPERS), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1",
        process.LOCKS_VARIABLE: str(locks), process.IDLE_VARIABLE: "1",
    }  # fmt: skip
    script = (
        "import sys; from pathlib import Path; from vlmconsole.queue.model import NewJob\n"
        "from vlmconsole.queue.store import Store\nfrom vlmconsole.runs.places import Places\n"
        "places = Places(Path(sys.argv[1])).ensure()\n"
        "Store(places.queue).add(NewJob('count', 'job_kinds:COUNT', 'C', {'steps': 1}))"
    )
    subprocess.run([*NOBODY, sys.executable, "-c", script, home], env=environment, check=True)
    supervisor = subprocess.Popen(
        [*NOBODY, "prlimit", "--nproc=1:", sys.executable, "-P", "-m", "vlmconsole.queue.process", home],
        env=environment,
    )  # fmt: skip
    store, deadline = Store(home / "queue.sqlite"), time.monotonic() + 60
    while "EAGAIN" not in str(store.meta(PAUSE)):
        assert time.monotonic() < deadline and store.get(1).state in ("queued", "starting"), store.get(1)
        time.sleep(0.05)
    subprocess.run([*NOBODY, "prlimit", f"--pid={supervisor.pid}", "--nproc=1000:"], check=True)
    while store.get(1).state not in FINAL:
        assert time.monotonic() < deadline, store.get(1)
        time.sleep(0.05)
    assert store.get(1).state == "done" and supervisor.wait(30) == 0


@pytest.mark.slow
def test_a_run_whose_books_cannot_be_closed_is_lost_and_its_device_free_again(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bad = lab.add(mode="child", **LONG)
    run, real = lab.at_step(bad), closing.bury

    def bury(one: object, *rest: str) -> object:
        if getattr(one, "path", None) == run.path:
            raise KeyError("home")
        return real(one, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "bury", bury)
    os.kill(lab.store.get(bad).pid or 0, signal.SIGKILL)
    lab.until(lambda: lab.supervisor.troubles.times(bad) == 1)
    lab.supervisor.tick()
    assert lab.supervisor.troubles.times(bad) == 1, "tried again without a pause"
    assert "watching it: KeyError: 'home' (see supervisor.log)" in (lab.store.get(bad).note or "")
    other = lab.add(steps=1)
    assert lab.ends(other) == ["done"], "one job's trouble held up another"
    for _ in range(3):
        lab.now += 10  # the pauses: 1, 2 and 4 s; the clock is ours
        lab.supervisor.tick()
    assert lab.ends(bad) == ["lost"] and "(KeyError: 'home')" in (lab.store.get(bad).reason or "")
    assert lab.ends(lab.add(devices=("cpu:all",), steps=1)) == ["done"]
    out, err = capfd.readouterr()
    assert len([line for line in out.splitlines() if mentions(line, "job 1", "KeyError", "next try")]) == 3
    assert err.count("Traceback") == 1


@pytest.mark.slow
def test_a_damaged_state_file_does_not_hide_a_living_worker_from_the_next_supervisor(lab: Lab) -> None:
    number = lab.add(**LONG)
    run = lab.at_step(number)
    lab.crash()
    run.file("state.json").write_text('{"state": "running", "pid": "none of your business", "pid_started": 7}')
    lab.supervisor.tick()
    assert lab.supervisor.live[number].worker.pid == lab.store.get(number).pid
    lab.store.cancel(number)
    assert lab.ends(number) == ["cancelled"]


def test_the_supervisors_process_survives_what_nobody_foresaw(
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module of the environment that breaks in every third round of the real process."""
    home = places.home.parent / "broken"
    home.mkdir()
    (home / "sitecustomize.py").write_text(
        "import itertools\nfrom vlmconsole.queue import view\nreal, turn = view.decide, itertools.count()\n"
        "def decide(*words):\n    if next(turn) % 3 == 0:\n        raise RuntimeError('out of the blue')\n"
        "    return real(*words)\nview.decide = decide\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(home), os.environ["PYTHONPATH"]]))
    store = Store(places.queue)
    number = store.add(NewJob("count", "job_kinds:COUNT", "C", {"steps": 1}))
    process.ensure(places)
    deadline = time.monotonic() + 60
    while store.get(number).state not in FINAL:
        assert time.monotonic() < deadline, store.get(number)
        time.sleep(0.05)
    log = (places.state / "supervisor.log").read_text()
    assert store.get(number).state == "done" and "RuntimeError: out of" in log
    assert log.count(" started") == 1 and "Traceback" in log

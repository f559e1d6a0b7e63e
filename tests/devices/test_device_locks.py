"""The shared lock folder: what another user lays there, cleaners of /tmp, and several lab homes on one machine."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import mentions
from supervised import LONG, Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole import doctor
from vlmconsole import lab as console
from vlmconsole.devices import lock_files
from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.queue.resources import Machine
from vlmconsole.runs.places import Places

MALLORY, ALICE = 54001, 54002  # real users of the kernel's; names are not needed

root = pytest.mark.skipif(os.getuid() != 0, reason="needs to become other users")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are looked at ten times as often as usual."""
    monkeypatch.setattr("vlmconsole.queue.supervisor.LOOK", 0.2)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /tmp: everybody may make things there. pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name) / "devices"


def as_user(uid: int, code: str, folder: Path, **options: object) -> "subprocess.Popen[str]":
    """Python as that user, with `locks` of the folder and a home of the user's own."""
    begin = f"""
        import os, stat, sys, time
        from pathlib import Path
        from vlmconsole.devices.locks import DeviceLocks
        from vlmconsole.queue.resources import Machine
        folder = Path(sys.argv[1])
        os.makedirs(folder.parent / "home-{uid}", exist_ok=True)
        os.chown(folder.parent / "home-{uid}", {uid}, {uid})
        os.setgid({uid}); os.setuid({uid})
        os.environ["XDG_CACHE_HOME"] = str(folder.parent / "home-{uid}")
        locks = DeviceLocks(folder)
    """
    command = [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code), str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)  # type: ignore[call-overload,no-any-return]


def output(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


FILE = "folder.mkdir(); folder.chmod(0o1777); path = folder / 'cpu.0.lock'; "
MINE = f"folder.mkdir(); folder.chmod(0o1777); path = folder / 'cpu.0.u{ALICE}.lock'; "
TRICKS = {
    "closed by a umask": FILE + "os.umask(0o077); path.touch()",
    "pipe": FILE + "os.mkfifo(path)",
    "folder": FILE + "path.mkdir()",
    "folder that is closed": FILE + "path.mkdir(0)",
    "link to a file": FILE + "path.symlink_to('/etc/passwd')",
    "link to nothing": FILE + "path.symlink_to('/nowhere/at/all')",
    "link to itself": FILE + "path.symlink_to(path)",
    "link to a device": FILE + "path.symlink_to('/dev/zero')",
    "second name of a file": FILE + "other = folder.parent / 'other'; other.touch(); os.link(other, path)",
    "socket": FILE + "import socket; socket.socket(socket.AF_UNIX).bind(str(path))",
    "executable for nobody": FILE + "path.touch(); path.chmod(0o111)",
    "pipe under our own name": MINE + "os.mkfifo(path)",
    "file under our own name": MINE + "path.touch()",
    "folder under our own name": MINE + "path.mkdir()",
    "link under our own name": MINE + "path.symlink_to('/etc/passwd')",
    "the folder is a file": "folder.touch()",
    "the folder is a pipe": "os.mkfifo(folder)",
    "the folder is a link": "(folder.parent / 'mine').mkdir(); folder.symlink_to(folder.parent / 'mine')",
    "the folder is a link to nothing": "folder.symlink_to('/nowhere')",
    "the folder is closed": "folder.mkdir(0o700)",
    "the folder may only be read": "folder.mkdir(0o755); os.chmod(folder, 0o755)",
    "the folder is not sticky": "folder.mkdir(); folder.chmod(0o777)",
}


FEW = ("closed by a umask", "pipe", "folder", "file under our own name", "the folder is a file")


@root
@pytest.mark.parametrize(
    "trick", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in TRICKS]
)
def test_nothing_that_another_user_made_before_stops_a_queue(trick: str, shared: Path) -> None:
    output(as_user(MALLORY, TRICKS[trick], shared))
    code = """
        taken = locks.take(["cpu.0", "gpu0"])
        other = DeviceLocks(folder)
        print(taken is not None, other.take(["cpu.0"]) is None, other.held("gpu0"), other.held("cpu.1"))
        print(bool(locks.remark))
    """
    got, told = output(as_user(ALICE, code, shared)).split("\n")
    assert got == "True True True False", "hers, and shared by her own lab homes"
    assert told == str(trick.startswith("the folder")), "that others are not asked is said"


@root
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_a_device_is_never_opened(kind: int, shared: Path) -> None:
    assert not lock_files.unfit(shared)
    os.mknod(shared / "cpu.0.lock", kind | 0o666, os.makedev(1, 5))
    assert output(as_user(ALICE, "print(len(locks.take(['cpu.0'])))", shared)) == "1"


@root
@pytest.mark.parametrize("umask", [0o077, *(pytest.param(mask, marks=pytest.mark.slow) for mask in (0o027, 0o777, 0))])
def test_two_users_share_a_device_whatever_the_umask(umask: int, shared: Path) -> None:
    """Each sees the other's hold, is told who it is, and gets the device when it is free."""
    hold = f"os.umask({umask}); taken = locks.take(['cpu.0', 'gpu0']); print(taken is not None, flush=True); input()"
    first = as_user(MALLORY, hold, shared)
    assert first.stdout is not None and first.stdout.readline() == "True\n"
    look = "print(locks.take(['gpu0']), locks.held('cpu.0'), locks.holder('gpu0'))"
    assert output(as_user(ALICE, look, shared)).startswith("None True in use by ")
    first.communicate("\n", timeout=60)
    assert output(as_user(ALICE, "print(len(locks.take(['gpu0'])))", shared)) == "3", "hers, his, and the common one"
    files = [path for path in shared.iterdir() if path.name.startswith("gpu0.")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644} and len(files) == 3


@root
def test_a_file_that_is_closed_to_us_is_still_seen_to_be_held(shared: Path) -> None:
    """An earlier version's, made under umask 077: it cannot be locked by others, but the kernel lists it."""
    code = FILE + "import fcntl; os.umask(0o077); file = path.open('w'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); input()"  # fmt: skip # noqa: E501
    first = as_user(MALLORY, code, shared)
    assert first.stdout is not None and first.stdout.readline() == "1\n"
    if lock_files.kernel_holder(shared / "cpu.0.lock") is None:
        first.kill()
        pytest.skip("this kernel does not list locks")
    assert output(as_user(ALICE, "print(locks.take(['cpu.0']), locks.held('cpu.0'))", shared)) == "None True"
    first.communicate("\n", timeout=60)
    assert output(as_user(ALICE, "print(locks.take(['cpu.0']) is not None)", shared)) == "True"


@root
def test_a_folder_closed_by_a_crash_is_opened_again_by_its_owner(shared: Path) -> None:
    output(as_user(MALLORY, "folder.mkdir(0o700)", shared))
    output(as_user(MALLORY, "locks.take(['cpu.0'])", shared))
    assert output(as_user(ALICE, "print(locks.take(['cpu.0']) is not None, repr(locks.remark))", shared)) == "True ''"


def test_a_folder_of_other_things_is_not_opened_to_everybody(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir(0o700)
    (folder / "chapter-1.tex").touch()
    locks = DeviceLocks(folder)
    assert locks.take(["cpu.0"]) is not None and stat.S_IMODE(folder.stat().st_mode) == 0o700


# --- cleaners of /tmp ---
def test_a_lock_file_that_was_removed_while_it_was_waited_for_is_no_lock(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path / "devices")
    first = locks.take(["cpu.0"])
    assert first is not None
    path = tmp_path / "devices" / f"cpu.0.u{os.getuid()}.lock"
    descriptor = lock_files.openable(path)
    assert descriptor is not None
    path.unlink()
    path.touch()
    assert not lock_files.same(descriptor, path), "the name means another file by now"
    again, held = lock_files.lock(path, 2)
    assert again is not None and not held


@pytest.mark.parametrize(
    "removed", ["all", "own", "folder", "replaced", pytest.param("common", marks=pytest.mark.slow)]
)
def test_a_holder_whose_files_were_cleaned_away_holds_on(lab: Lab, tmp_path: Path, removed: str) -> None:
    number = lab.add(devices=("cpu",), **LONG)
    lab.at_step(number)
    for path in (tmp_path / "devices").glob("cpu.0.*"):
        if removed == "replaced":
            (tmp_path / "new").touch()
            (tmp_path / "new").replace(path)
        elif removed in ("all", "folder") or (path.name == "cpu.0.lock") == (removed == "common"):
            path.unlink()
    if removed == "folder":
        shutil.rmtree(tmp_path / "devices")
    lab.supervisor._looked = -1e9
    lab.supervisor.tick()
    other = Machine(DeviceLocks(tmp_path / "devices"), 1)
    other.home = tmp_path / "other"
    assert other.take(["cpu.0"]) is None and "cpu.0" in other.look().outside
    note = lab.store.get(number).note or ""
    assert mentions(note, "lock file", "removed") == (removed != "common"), "that others may have had it is said"
    lab.store.cancel(number)
    assert lab.ends(number) == ["cancelled"]
    lab.supervisor._looked = -1e9
    lab.supervisor.tick()
    assert other.take(["cpu.0"]) is not None, "what was locked anew is let go with the job"


def test_a_file_in_use_stays_young(lab: Lab, tmp_path: Path) -> None:
    number = lab.add(devices=("cpu:all",), **LONG)
    lab.at_step(number)
    path = tmp_path / "devices" / f"cpu.1.u{os.getuid()}.lock"
    os.utime(path, (1, 1))
    lab.supervisor._looked = -1e9
    lab.supervisor.tick()
    assert time.time() - path.stat().st_mtime < 1000 and not lab.store.get(number).note


# --- several lab homes ---
def serve(lab: Lab) -> int:
    number = lab.add(kind="job_kinds:SERVE", serves="demo", keep=True, profile="demo")
    lab.until(lambda: lab.supervisor.ready_servers())
    return number


def look(lab: Lab, seconds: float = 3.0) -> None:
    """One more look at the machine, so much later."""
    lab.now += seconds
    lab.supervisor.tick()


@pytest.fixture
def other(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(Places(tmp_path / "other").ensure())
    yield made
    for live in made.supervisor.live.values():
        live.worker.kill()


def test_an_idle_server_holds_nothing_from_other_homes_but_timed_work(lab: Lab, other: Lab) -> None:
    """Servers and ordinary work of another home go on beside it, on every slot there is."""
    serve(lab)
    serve(other)
    numbers = [other.add(steps=2), lab.add(steps=2)]
    assert lab.ends(numbers[1]) == ["done"] and other.ends(numbers[0]) == ["done"]
    third = Lab(Places(lab.places.home.parent / "third").ensure())
    both = [third.add(devices=("cpu:2",), steps=2), third.add(steps=1)]
    assert third.ends(*both) == ["done", "done"]


def test_an_idle_server_makes_room_for_another_homes_timed_work_and_comes_back(lab: Lab, other: Lab) -> None:
    server = serve(lab)
    pid = lab.store.get(server).pid
    timed = other.add(devices=("cpu:all",), steps=3, seconds=0.5)
    other.supervisor.tick()
    why = other.supervisor.decision.why[timed]
    assert f"(pid {pid}, another lab home)" in why and "makes room" in why and not other.supervisor.idle()
    look(lab)
    assert lab.store.get(server).state == "running", "one that worked just now is not idle yet"
    for _ in range(5):
        look(lab)
    assert lab.ends(server) == ["done"] and "made room" in (lab.store.get(server).reason or "")
    look(other)
    back = next(job for job in lab.store.listing() if job.serves and job.id != server)
    look(lab)
    assert other.store.get(timed).state in ("starting", "running") and lab.store.get(back.id).state == "queued"
    why = lab.supervisor.decision.why[back.id]
    assert "lab home" in why and "timed work" in why
    assert not lab.supervisor.idle(), "it comes back by itself"
    assert other.ends(timed) == ["done"]
    look(lab)
    lab.until(lambda: lab.store.get(back.id).state == "running")


def test_a_busy_server_makes_no_room_and_is_not_asked_for_ever(lab: Lab, other: Lab) -> None:
    server = lab.add(kind="job_kinds:SERVE", serves="demo", keep=True, profile="demo")
    lab.until(lambda: lab.supervisor.ready_servers())
    guest = lab.add(server="demo", devices=(), steps=2000, seconds=0.05)
    lab.until(lambda: lab.store.get(guest).state == "running")
    timed = other.add(devices=("cpu:all",), steps=1)
    for _ in range(10):
        look(other)
        look(lab)
    assert lab.store.get(server).state == "running" and other.store.get(timed).state == "queued"
    assert "timed" in lab.supervisor.machine.look(["cpu.0", "cpu.1"]).outside
    look(other, 100)
    assert "timed" not in lab.supervisor.machine.look(["cpu.0", "cpu.1"]).outside, "others' work goes on meanwhile"
    assert other.store.get(timed).state == "queued"
    lab.store.cancel(guest)
    lab.ends(guest)


def test_timed_guests_of_a_server_keep_other_homes_servers_out(lab: Lab, other: Lab) -> None:
    """A server's slot is shared, also while timed work uses that server: nobody else comes onto it then."""
    serve(lab)
    guest = lab.add(server="demo", devices=("cpu:all",), **LONG)
    lab.until(lambda: lab.store.get(guest).state == "running")
    theirs = other.add(kind="job_kinds:SERVE", serves="demo", keep=True, profile="demo")
    work = other.add(steps=1)
    look(other)
    assert set(other.supervisor.decision.why) == {theirs, work}
    assert "timed work" in other.supervisor.decision.why[theirs]
    lab.store.cancel(guest)
    lab.ends(guest)
    look(other)
    other.until(lambda: other.supervisor.ready_servers())
    assert other.ends(work) == ["done"]


def test_two_timed_jobs_of_two_homes_never_run_together(lab: Lab, other: Lab) -> None:
    first, second = lab.add(devices=("cpu:all",), steps=3), other.add(devices=("cpu:all",), steps=3)
    for _ in range(400):
        lab.supervisor.tick()
        other.supervisor.tick()
        active = [job for one in (lab, other) for job in one.store.active()]
        assert len(active) < 2
        states = [lab.store.get(first).state, other.store.get(second).state]
        if states == ["done", "done"]:
            return
        for one in (lab, other):
            one.now += 1
        time.sleep(0.02)
    raise AssertionError(states)


def test_a_home_that_counts_fewer_slots_is_alone_all_the_same(lab: Lab, tmp_path: Path) -> None:
    wide = Machine(DeviceLocks(tmp_path / "devices"), 4)
    wide.home = tmp_path / "wide"
    held = wide.take(["cpu.3"])
    timed = lab.add(devices=("cpu:all",), steps=1)
    lab.supervisor.tick()
    assert "waiting for CPU, " in lab.supervisor.decision.why[timed]
    wide.locks.release(held or [])
    look(lab)
    assert lab.ends(timed) == ["done"]


def test_an_earlier_versions_job_is_respected_and_respects_ours(lab: Lab, tmp_path: Path) -> None:
    """It knows the common files alone, and takes each for itself."""
    import fcntl

    folder = tmp_path / "devices"
    server = serve(lab)

    def theirs(name: str) -> bool:
        with (folder / f"{name}.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    assert not theirs("cpu.0"), "their timed work waits for our server, as ever"
    with (folder / "cpu.1.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = lab.add(steps=1)
        look(lab)
        assert "waiting for CPU" in lab.supervisor.decision.why[number]
    look(lab)
    assert lab.ends(number) == ["done"]
    assert lab.store.get(server).state == "running"


def test_a_lock_folder_that_cannot_be_is_a_reason_and_not_silence(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    lab.locks.wanted = tmp_path / "file"
    number = lab.add(steps=1)
    lab.supervisor.tick()
    why = lab.supervisor.decision.why[number]
    assert "VLMCONSOLE_DEVICE_LOCKS" in why and str(tmp_path / "file") in why
    lab.locks.wanted = tmp_path / "devices"
    look(lab)
    assert lab.ends(number) == ["done"]


def test_a_stranger_on_the_lock_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "devices"
    locks = DeviceLocks(folder)
    DeviceLocks.release(locks.take(["cpu.0"]) or [])
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(folder / "cpu.0.lock")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert f"held by pid {process.pid} " in Machine(locks, 1).look().outside["cpu.0"]
        process.send_signal(signal.SIGKILL)


def test_a_socket_is_no_lock(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "x.lock"))
    assert lock_files.openable(tmp_path / "x.lock") is None


def test_the_doctor_says_whether_devices_are_shared_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, state in (("missing", None), ("file", "wrong"), ("folder", "ok")):
        monkeypatch.setenv("VLMCONSOLE_DEVICE_LOCKS", str(tmp_path / name))
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir(exist_ok=True)
        found = {check.name: check for check in doctor.examine(console.Lab.open(tmp_path / "home"))}
        assert (found["device locks"].state if "device locks" in found else None) == state
        assert not (tmp_path / "missing").exists()

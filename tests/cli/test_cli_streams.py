"""What a command makes of closed or full standard streams, of an absurd width, and of absurd numbers."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from refusals import check_stderr, mentions, refused

from vlmconsole.cli import streams
from vlmconsole.lab import Lab
from vlmconsole.system.privacy import close_home
from vlmconsole.vision.kv import KVError, kv_bytes

KV = "kv --layers 4 --kv-heads 2 --head-dim 8 --bytes 2"
CLOSED = [ends for n in (1, 2, 3) for ends in itertools.combinations(("<&-", ">&-", "2>&-"), n)]


def shell(line: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """One command line of the console, with the redirections of a shell."""
    return subprocess.run(
        ["sh", "-c", f'"$PYTHON" -m vlmconsole {line}'],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, "VLMCONSOLE_HOME": str(home), **env},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("line", ["--json runs list", "runs list", KV, "--help", "--json kv --layers x", "--version"])
def test_a_full_output_is_one_line_and_never_the_disks_fault(line: str, tmp_path: Path) -> None:
    done = shell(f"{line} >/dev/full", tmp_path)
    assert done.returncode == (2 if "x" in line.split() else 1)
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr and "Make room" not in done.stderr
    if "x" not in line.split():
        check_stderr(done.stderr, "Standard output", os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("ends", CLOSED, ids=" ".join)
def test_closed_streams_are_said_and_never_traced(ends: tuple[str, ...], tmp_path: Path) -> None:
    done = shell(f"--json {KV} {' '.join(ends)}", tmp_path)
    if ">&-" in ends:
        assert done.returncode == 1 and not done.stdout
        if "2>&-" in ends:
            assert done.stderr == ""
        else:
            check_stderr(done.stderr, "Standard output", "closed")
    else:
        assert done.returncode == 0 and json.loads(done.stdout)["layers"] == 4 and not done.stderr
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(("line", "code"), [("chat - <&-", 2), (">&-", 1), ("chat hello >&-", 1), ("<&-", 2)])
def test_a_command_that_reads_or_draws_says_what_is_closed(line: str, code: int, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("error: ") and "AttributeError" not in done.stderr


def test_a_full_or_closed_error_stream_does_not_stop_the_work(tmp_path: Path) -> None:
    for end in ("2>/dev/full", "2>&-"):
        done = shell(f"--json runs list {end}", tmp_path)
        assert (done.returncode, done.stdout) == (0, '{"runs": []}\n')
        assert shell(f"kv --layers x {end}", tmp_path).returncode == 2


def test_no_file_of_the_lab_gets_a_standard_descriptor(tmp_path: Path) -> None:
    code = (
        "from vlmconsole.cli import streams; import os, sys; streams.open_missing();"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY); assert fd > 2, fd;"
        "assert all(os.get_inheritable(n) for n in range(3))"
    )
    for ends in CLOSED:
        line = f'"$0" -c "$1" "$2" {" ".join(ends)}'
        done = subprocess.run(["sh", "-c", line, sys.executable, code, tmp_path / "f"], timeout=60, check=False)
        assert done.returncode == 0, ends


@pytest.mark.parametrize("columns", ["0", "-5", "1", "9" * 5000])
def test_an_absurd_width_is_as_if_unset_or_the_least(columns: str, tmp_path: Path) -> None:
    done = shell("servers list", tmp_path, COLUMNS=columns)
    assert done.returncode == 0 and "demo" in done.stdout and len(done.stdout) < 5000


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("0", None),
        ("-1", None),
        ("x", None),
        ("12.5", None),
        ("", None),
        ("²", None),
        ("39", "40"),
        ("080", "80"),
        ("99999999", "1000"),
    ],
)
def test_columns_are_held_to_what_can_be_shown(given: str, held: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)
    streams.check_size()
    assert os.environ.get("COLUMNS") == held


@pytest.mark.parametrize("size", ["inf", "nan", "1e308", "-inf", "0", "17"])
def test_a_size_of_an_element_that_does_not_exist_is_refused_by_name(size: str, tmp_path: Path) -> None:
    done = shell(f"kv --layers 4 --kv-heads 2 --head-dim 8 --bytes {size}", tmp_path)
    assert done.returncode == 2 and "--bytes" in done.stderr and "own" not in done.stderr


@pytest.mark.parametrize("option", ["--layers", "--kv-heads", "--head-dim", "--tokens", "--sequences"])
def test_a_number_past_all_sense_is_refused_by_name(option: str, tmp_path: Path) -> None:
    done = shell(f"{KV} {option} 1{'0' * 400}", tmp_path)
    assert done.returncode == 2 and option in done.stderr


@pytest.mark.parametrize("line", ["chat hi --temperature nan", "chat hi --top-p nan", "gauges --once --speed nan"])
def test_a_nan_is_no_number_between_two(line: str, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == 2 and line.split()[-2] in done.stderr, done.stderr


@pytest.mark.parametrize("rate", ["1e308", "1e-300", "inf", "nan"])
def test_a_rate_past_all_sense_is_refused(rate: str, tmp_path: Path) -> None:
    done = shell(f"bench --rate {rate}", tmp_path)
    assert done.returncode == 2 and "rate" in done.stderr


def test_the_formula_refuses_what_is_not_finite() -> None:
    for element in (float("inf"), float("nan"), 1e308):
        with pytest.raises(KVError):
            kv_bytes(4, 2, 8, element, 4096)
    with pytest.raises(KVError):
        kv_bytes(10**400, 2, 8, 2.0, 1)


def test_a_home_that_is_no_folder_is_refused_without_a_word_of_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o666)
    file.chmod(0o666)
    for home in (Path("/dev/null"), file, Path("/dev/full")):
        with refused("home-invalid", str(home)) as failure:
            Lab.open(home)
        assert failure.value.exit_status == 2 and not mentions(f"{failure.value.message} {failure.value.hint}", "chmod")
    with refused("home-invalid"):
        close_home(file)
    assert file.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize(("tty", "given"), [((30, 100), "99999999"), ((0, 0), "99999999"), ((65535, 65535), "100")])
def test_the_console_asks_its_terminal_and_caps_what_it_says(tty: tuple[int, int], given: str, tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000, 3_000_000_000))
        os.environ.update(COLUMNS=given, LINES=given, VLMCONSOLE_HOME=str(tmp_path), TERM="xterm-256color")
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *tty, 0, 0))
        code = (
            "import shutil; from vlmconsole.cli import streams; streams.check_size(); streams.ask_terminal();"
            "print(*shutil.get_terminal_size())"
        )
        os.execv(sys.executable, [sys.executable, "-c", code])
    text, end = b"", time.monotonic() + 30
    while b"\n" not in text and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            text += os.read(terminal, 1000)
    os.waitpid(pid, 0)
    os.close(terminal)
    columns, lines = map(int, text.split())
    assert (columns, lines) == ((100, 30) if tty == (30, 100) else (1000, 500))


def test_the_console_draws_in_a_terminal_of_any_environment(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000, 3_000_000_000))
        os.environ.update(COLUMNS="99999999", LINES="99999999", VLMCONSOLE_HOME=str(tmp_path), TERM="xterm-256color")
        os.environ["VLMCONSOLE_SERVER"] = "openai"  # one that is never started
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "vlmconsole"])
    text, end = b"", time.monotonic() + 60
    try:
        while b"Chat" not in text and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                text += os.read(terminal, 65536)
        assert b"Chat" in text
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert peak and int(peak[1]) < 1_000_000
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)

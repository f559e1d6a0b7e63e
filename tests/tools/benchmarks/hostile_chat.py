"""Memory and seconds of `vlmconsole chat` and of the console under each manner of the hostile server.

    python -m tests.tools.benchmarks.hostile_chat [MANNER…]

Each is a process of its own. After `PATIENCE` seconds it is stopped as a person would (Ctrl-C; the console's own way to
stop an answer), and the time until that is heard is measured. Of a console also the longest that its loop stood still.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "lab"), str(HERE.parents[2] / "screens" / "chat")]

from hostile_server import CHAT, EVERYWHERE, hostile  # noqa: E402

from vlmconsole.system.machine import peak_rss_bytes  # noqa: E402

PATIENCE = 12.0
MEMORY = 3_000_000_000  # bytes of address space that a run may take: one that runs away must not harm others
MANNERS = [one.__name__.replace("_", "-") for one in CHAT] + [
    f"chat-{one.__name__.replace('_', '-')}" for one in EVERYWHERE
]


@dataclass
class Seen:
    """What one process took. rss_mb: peak; heard_s: from the stop to the end, None when it ended before; lag_s: the
    longest stand-still of the console's loop."""

    manner: str
    rss_mb: float
    seconds: float
    heard_s: float | None
    words: str
    lag_s: float | None = None


def command(url: str, manner: str, home: str, patience: float = PATIENCE) -> Seen:
    """`vlmconsole chat` against one manner."""
    words = [sys.executable, "-m", "vlmconsole", "--home", home, "chat", "hi", "--base-url", f"{url}/{manner}"]
    words += ["--model", "m", "--quiet"]
    begun = time.monotonic()
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=err, preexec_fn=_limited)
        heard, peak = None, 0
        while process.poll() is None:
            peak = max(peak, peak_rss_bytes(process.pid))
            if heard is None and time.monotonic() - begun > patience:
                heard = time.monotonic()
                process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        ended = time.monotonic()
        err.seek(0)
        said = err.read().decode("utf-8", "replace").strip().splitlines()
    last = next((line for line in reversed(said) if line.startswith("error")), said[-1] if said else "")
    return Seen(
        manner, peak / 1024**2, ended - begun, None if heard is None else ended - heard, f"{process.returncode}: {last}"
    )


def console(url: str, manner: str, home: str, patience: float = PATIENCE) -> Seen:
    """The console, without a terminal, against one manner."""
    words = [sys.executable, str(HERE), "--inside", f"{url}/{manner}", home, str(patience)]
    made = subprocess.run(words, capture_output=True, text=True, timeout=patience + 120, preexec_fn=_limited)
    if made.returncode:
        return Seen(manner, 0.0, 0.0, None, (made.stderr.strip().splitlines() or ["ended"])[-1])
    return Seen(**{**json.loads(made.stdout.splitlines()[-1]), "manner": manner})


async def inside(address: str, home: Path, patience: float) -> Seen:
    """Ask in a console of this process."""
    from chat_server import profile_file
    from test_chat_screen import answered, ask
    from test_chat_screen import console as opened

    from vlmconsole.client.lag import LagMeter

    profile_file(home, 9, base_url=address, served_model="m")
    async with opened(home) as (pilot, screen):
        with LagMeter() as lag:
            begun = time.monotonic()
            await ask(pilot, screen, "hi")
            while not answered(screen) and time.monotonic() - begun < patience:
                await asyncio.sleep(0.05)
            heard = None
            if not answered(screen):
                heard = time.monotonic()
                for turn in screen.asker.running:
                    turn.stop()
                while not answered(screen):
                    await asyncio.sleep(0.01)
            ended = time.monotonic()
            await pilot.pause(0.5)  # the answer is laid out
        answer = screen.conversation.answers()[-1]
        stood = (lag.facts()["lag_max_ms"] or 0) / 1000
    words = f"{answer.state}: {answer.error}"
    return Seen("", peak_rss_bytes() / 1024**2, ended - begun, None if heard is None else ended - heard, words, stood)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def row(who: str, seen: Seen) -> str:
    heard = "" if seen.heard_s is None else f"stop heard in {seen.heard_s:.2f} s"
    stood = "" if seen.lag_s is None else f"stood still {seen.lag_s:.2f} s"
    cells = (
        f"{who:8}",
        f"{seen.manner:22}",
        f"{seen.rss_mb:6.0f} MB",
        f"{seen.seconds:6.1f} s",
        f"{heard:22}",
        f"{stood:19}",
    )
    return " ".join((*cells, seen.words[:90]))


def main(names: list[str]) -> None:
    with hostile() as url, tempfile.TemporaryDirectory() as folder:
        for number, manner in enumerate(names or MANNERS):
            for who, measure in (("command", command), ("console", console)):
                home = Path(folder) / f"{who}-{number}"
                home.mkdir()
                print(row(who, measure(url, manner, str(home))), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(asdict(asyncio.run(inside(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))))))
    else:
        main(sys.argv[1:])

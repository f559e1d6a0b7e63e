"""What the scheduler is given and what it decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

OK_STATES = frozenset({"done"})
ENDED = frozenset({"done", "failed", "cancelled", "lost"})
ALL = "cpu×all"


@dataclass(frozen=True)
class Want:
    """A waiting job. `devices` are requests: `cpu`, `cpu:2`, `cpu:all`, `gpu`, `gpu1`, `port:80`.

    `server` is the profile it is a guest of, `serves` the profile it would serve itself.
    `blocked` is a reason from outside (an environment that is not built), `not_before` seconds still to wait.
    `damaged` is the sentence of a record that cannot be used, `lacks` that of variables nobody here can give.
    """

    id: int
    devices: tuple[str, ...] = ("cpu",)
    server: str | None = None
    serves: str | None = None
    hand_over: bool = False
    after: tuple[tuple[int, Literal["ok", "any"]], ...] = ()
    blocked: str = ""
    not_before: float = 0.0
    damaged: str = ""
    lacks: str = ""

    @property
    def timed(self) -> bool:
        """Whether it has the machine to itself."""
        return is_timed(self.devices)


@dataclass(frozen=True)
class HeldDevices:
    """A job that was started and has not ended, with the devices it was given. `keep`: a server asked to stay."""

    id: int
    devices: tuple[str, ...] = ()
    serves: str | None = None
    ready: bool = False
    keep: bool = False
    guest_of: int | None = None
    stopping: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Devices:
    """The machine. `outside` names devices that someone outside this queue holds, each with a sentence about whom.

    `shareable` are the CPU slots among them on which a server may run all the same. Taken may also be `timed` (another
    home's timed work has the machine, or is next), other homes' servers (`server-…`), and slots that we do not count.
    """

    cpu_slots: int
    gpus: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    shareable: frozenset[str] = frozenset()

    def cpus(self) -> tuple[str, ...]:
        return tuple(f"cpu.{number}" for number in range(self.cpu_slots))


@dataclass(frozen=True)
class Start:
    """Start this job on these devices; `guest_of` is the job of the server it uses."""

    id: int
    devices: tuple[str, ...]
    guest_of: int | None = None


@dataclass
class Decision:
    """What to do now. `servers` are (profile, job that needs it) to be queued; `stops` are servers to let go.

    `stuck` are jobs that nothing in this queue will set going; of these, `outside` wait for something that may
    change without a command to the queue (a foreign process ends, an environment gets built). `blocker` names, for a
    job that waits for a person's word, the profile of the server on its device. `room` is timed work that waits for
    nothing but other homes' servers.
    """

    starts: list[Start] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    servers: list[tuple[str, int]] = field(default_factory=list)
    why: dict[int, str] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    blocker: dict[int, str] = field(default_factory=dict)
    room: int | None = None

    def hold(self, why: str) -> None:
        """Start nothing after all, and let no server go for it: what was to start waits, and says why."""
        self.why |= {start.id: why for start in self.starts}
        self.starts, self.stops, self.servers, self.room = [], [], [], None


def is_timed(requests: Iterable[str]) -> bool:
    """Return whether a job of these devices has the machine to itself."""
    return "cpu:all" in requests

"""What starts next, and why the rest waits: a pure function of the queue, what runs, and the devices.

The rules, which together keep any set of jobs from waiting for each other for ever:

- A job takes all of its devices at once or none.
- Jobs are tried in order. One that waits for something which will end by itself (a job, a server kept only for
  guests) *reserves* what it asks for, so that a stream of small jobs never starves a large one. One that waits for
  a person (a foreign process, a server that was asked to stay) reserves nothing, so that it stops nobody.
- A guest uses its server's devices and waits for it; a server never waits for a guest.
- Timed work (what asks for `cpu:all`) has the machine to itself. Servers on the CPU are in nobody's way but of that:
  another lab home's make room for it once they are idle.
- A server started only for guests ends when no guest runs, none that comes earlier waits, and another job is next on
  its device. A server that was asked to stay is stopped only for a job whose hand-over was confirmed.
"""

from collections.abc import Iterable, Mapping, Sequence

from vlmconsole.devices.labels import SERVER, TIMED, WHOLE_CPU, device_words
from vlmconsole.queue.wants import ENDED, OK_STATES, Decision, Devices, HeldDevices, Start, Want


def decide(
    wants: Sequence[Want],
    held: Iterable[HeldDevices],
    states: Mapping[int, str],
    devices: Devices,
    drained: bool = False,
) -> Decision:
    """Decide over `wants`, which are in queue order; `states` are those of every job one may wait for."""
    return _Round(wants, list(held), states, devices, drained).run()


class _Round:
    def __init__(
        self,
        wants: Sequence[Want],
        held: list[HeldDevices],
        states: Mapping[int, str],
        devices: Devices,
        drained: bool,
    ) -> None:
        self.wants, self.held, self.states, self.devices, self.drained = wants, held, states, devices, drained
        self.decision = Decision()
        self.holder = {device: job for job in held for device in job.devices}
        self.given: dict[str, int] = {}  # device → job started in this very round
        self.reserved: dict[str, int] = {}  # device → earlier job that is next on it
        self.guests = {job.guest_of for job in held if job.guest_of is not None}
        self.awaited: set[int] = set()  # servers that an earlier guest still waits to use
        self.claimed: dict[int, int] = {}  # server → earlier job that waits for it to end
        self.hopeless = hopeless({want.id: want.after for want in wants if want.after}, states)
        self.coming: dict[str, Want] = {}
        self.considered: set[int] = set()
        for want in wants:
            # One that must first wait for other jobs may wait for this very guest: a guest never counts on it.
            if want.serves and all(self._met(pair) for pair in want.after):
                self.coming.setdefault(want.serves, want)
        self.timed = next((job.id for job in held if job.timed and not job.serves), None)
        self.waits_on: dict[int, int] = {}  # waiting job → the one job it waits for

    def _met(self, pair: tuple[int, str]) -> bool:
        other, mode = pair
        state = self.states.get(other, "gone")
        return state in OK_STATES or (mode == "any" and (state in ENDED or other in self.hopeless))

    def run(self) -> Decision:
        for want in self.wants:
            if self.drained:
                self.wait(want, "the queue is drained: `vlmconsole jobs resume` resumes it", stuck=True)
            elif want.id not in self.considered:
                self.consider(want)
        self._spread_stuck()
        return self.decision

    def _spread_stuck(self) -> None:
        """Whoever waits for a stuck job is stuck too, also where that one stands later in the queue."""
        moved = True
        while moved:
            moved = False
            for job, other in self.waits_on.items():
                if other in self.decision.stuck and job not in self.decision.stuck:
                    self.decision.stuck.add(job)
                    self.decision.why[job] += ", which waits too"
                    moved = True

    def wait(self, want: Want, why: str, *, stuck: bool = False) -> None:
        self.decision.why[want.id] = why
        if stuck:
            self.decision.stuck.add(want.id)

    def consider(self, want: Want) -> None:
        self.considered.add(want.id)
        if want.damaged or want.lacks:
            self.wait(want, want.damaged or want.lacks, stuck=True)
        elif want.blocked:
            self.wait(want, want.blocked, stuck=True)
            self.decision.outside.add(want.id)
        elif not (self._dependencies(want) and self._in_time(want)):
            return
        elif want.server is None:
            self._place(want, None)
        else:
            host = self._host(want)
            if host is not None:
                self._place(want, host)

    def _in_time(self, want: Want) -> bool:
        if want.not_before > 0:
            self.wait(want, f"tries again in {want.not_before:.0f} s")
        return want.not_before <= 0

    def _dependencies(self, want: Want) -> bool:
        for other, mode in want.after:
            if self._met((other, mode)):
                continue
            state = self.states.get(other, "gone")
            if state in ENDED:
                what = f"after {other}, which {'was ' if state != 'failed' else ''}{state}"
                self.wait(want, f"{what}: retry {other}, or cancel this one", stuck=True)
            elif state == "gone":
                self.wait(want, f"after {other}, which is no longer in the queue", stuck=True)
            else:
                self.waits_on[want.id] = other
                self.wait(want, f"after {other}")
            return False
        return True

    def _host(self, want: Want) -> HeldDevices | None:
        """The running, ready server that `want` may use now; else says why not."""
        name = want.server or ""
        host = next((job for job in self.held if job.serves == name and not job.stopping), None)
        if host is None:
            server = self.coming.get(name)
            if server is None:
                # A server is started only for a guest that could then run: else it would come and go for nothing.
                requests = [request for request in want.devices if not request.startswith("gpu")]
                chosen = self._choose(want, requests, None)
                worst = self._worst(want, chosen)
                if worst is None and chosen is None:
                    return None
                if worst is not None and self._rank(worst, want) >= 4:
                    self._blocked_by(worst, want)
                    return None
                leaving = any(job.serves == name for job in self.held)
                if not leaving and not any(profile == name for profile, _ in self.decision.servers):
                    self.decision.servers.append((name, want.id))
                self.wait(want, f"needs server {name}, which will be started for it")
            else:
                if server.id not in self.considered:  # its guest's turn is its own
                    self.consider(server)
                start = next((start for start in self.decision.starts if start.id == server.id), None)
                self.waits_on[want.id] = server.id
                self.wait(want, f"needs server {name}, first in line for it is job {server.id}")
                if start is not None:
                    self._keep_place(want, HeldDevices(server.id, start.devices, name))
            return None
        if host.id in self.claimed:
            self.wait(want, f"needs server {name}, which job {self.claimed[host.id]} waits to replace")
            return None
        if not host.ready:
            self.wait(want, f"needs server {name}, which is starting (job {host.id})")
            self.awaited.add(host.id)
            self._keep_place(want, host)
            return None
        return host

    def _keep_place(self, want: Want, host: HeldDevices) -> None:
        """While its server starts, a guest's devices are promised to it, or a later job would have them by then.

        Only of a server that has its own devices: one that waits itself would wait for what its guest keeps.
        """
        chosen = self._choose(want, list(want.devices), host)
        worst = self._worst(want, chosen)
        if chosen is not None and (worst is None or self._rank(worst, want) < 4):
            self._reserve(want, chosen, host)

    def _place(self, want: Want, host: HeldDevices | None) -> None:
        """Give `want` its devices, or say who has them and reserve them if they will come free."""
        requests = [*want.devices, *([f"server:{want.serves}"] if want.serves else [])]
        chosen = self._choose(want, requests, host)
        if chosen is None:
            return
        worst = self._worst(want, chosen)
        if worst is None and want.timed and self._not_alone(want, chosen):
            return
        if worst is None:
            mine = tuple(sorted(chosen))
            self.given |= dict.fromkeys(mine, want.id)
            self.decision.starts.append(Start(want.id, mine, host.id if host else None))
            if host is not None:
                self.guests.add(host.id)
            return
        if self._rank(worst, want) >= 4:
            self._blocked_by(worst, want)
        else:
            self.wait(want, self._because(worst, want))
            self._reserve(want, chosen, host)

    def _not_alone(self, want: Want, chosen: list[str]) -> bool:
        """Whether timed work must wait though its slots are free: for other timed work, or for what others run."""
        if self.timed is not None:  # two guests of a server that is on every slot
            self.wait(want, f"waiting for {WHOLE_CPU} (job {self.timed})")
            return True
        others = [name for name in self.devices.outside if name.startswith(("cpu.", SERVER)) and name not in chosen]
        other = min(others, key=lambda name: name.startswith(SERVER), default=None)
        if other is None:
            self.timed = want.id
            return False
        self.wait(want, self._because(other, want), stuck=True)
        self.decision.outside.add(want.id)
        if other.startswith(SERVER) and self.decision.room is None:
            self.decision.room = want.id
        return True

    def _outside(self, name: str, want: Want) -> str:
        """Which entry of what others have taken keeps a device from `want`; "" for none."""
        outside = self.devices.outside
        if name.startswith("cpu.") and TIMED in outside:
            return TIMED
        return name if name in outside and not (want.serves and name in self.devices.shareable) else ""

    def _blocked_by(self, name: str, want: Want) -> None:
        self.wait(want, self._because(name, want), stuck=True)
        if self._outside(name, want):
            self.decision.outside.add(want.id)
        elif name in self.holder and not name.startswith("server."):
            self.decision.blocker[want.id] = self.holder[name].serves or ""

    def _choose(self, want: Want, requests: list[str], host: HeldDevices | None) -> list[str] | None:
        """The devices nearest to being free that would do; None (and said why) when the machine has too few."""
        chosen: list[str] = []
        # Named devices first: else "gpu" could take the very card that "gpu0" asks for.
        for request in sorted(requests, key=lambda request: request.partition(":")[0] in ("cpu", "gpu")):
            names, count = self._candidates(request, host)
            names = [name for name in names if name not in chosen]
            if len(names) < count:
                self.wait(want, _too_few(request, len(names)), stuck=True)
                return None
            chosen += sorted(names, key=lambda name: self._rank(name, want))[:count]
        return chosen

    def _worst(self, want: Want, chosen: list[str] | None) -> str | None:
        """The one of the chosen devices that is furthest from being free; None when all are free."""
        busy = [name for name in chosen or [] if self._rank(name, want) > 0]
        return max(busy, key=lambda name: self._rank(name, want), default=None)

    def _candidates(self, request: str, host: HeldDevices | None) -> tuple[list[str], int]:
        """The concrete devices that would do for `request`, and how many of them it takes."""
        kind, _, size = request.partition(":")
        mine = set(host.devices) if host else set()
        if kind == "cpu":
            # What its own server holds is not in a guest's way: "all" means all but that.
            names = [name for name in self.devices.cpus() if name not in mine]
            count = len(names) if size == "all" else min(int(size or 1), max(1, self.devices.cpu_slots))
            # On a server that holds every slot the guest runs beside it.
            return names, min(count, len(names)) if mine else count
        if kind == "gpu":
            if mine & set(self.devices.gpus):
                return [], 0  # a guest works on its server's card
            return list(self.devices.gpus), int(size or 1)
        if request in self.devices.gpus:
            return ([], 0) if request in mine else ([request], 1)
        if kind in ("port", "server"):
            return [f"{kind}.{size}"], 1
        return [], 1

    def _rank(self, name: str, want: Want) -> int:
        """How far away a device is: 0 free, 1 promised, 2 a job has it, 3 a server we may end, 4 up not ours to end."""
        if self._outside(name, want):
            return 5
        holder = self.holder.get(name)
        if name.startswith("server."):  # there is one server of a profile, and another never replaces it
            return 4 if holder is not None or name in self.given else 0
        if holder is not None:
            if holder.serves is None or holder.stopping:
                return 2
            return 4 if holder.keep and not want.hand_over else 3
        if name in self.given or name in self.reserved:
            return 1
        return 0

    def _because(self, name: str, want: Want) -> str:
        shown = device_words([name]).replace("cpu", "CPU")
        if name.startswith("server."):
            other = self.holder[name].id if name in self.holder else self.given[name]
            return f"server {name.partition('.')[2]} runs already, as job {other}"
        if name.startswith(SERVER):
            return f"waiting for {WHOLE_CPU}, {self.devices.outside[name]}: a server, which makes room once it is idle"
        if outside := self._outside(name, want):
            timed = " for timed work" if outside == TIMED else ""
            return f"waiting for {shown}, {self.devices.outside[outside]}{timed}"
        holder = self.holder.get(name)
        if holder is None:
            return f"waiting for {shown}, job {self.given.get(name, self.reserved.get(name))} is ahead"
        if holder.serves is None:
            return f"waiting for {shown} (job {holder.id})"
        server = f"waiting for {shown} (server {holder.serves}, job {holder.id})"
        if self._rank(name, want) == 4:
            return f"{server}; stop it, or confirm the hand-over"
        return f"{server}, which stops when its clients finish"

    def _reserve(self, want: Want, chosen: list[str], host: HeldDevices | None) -> None:
        if host is not None:
            self.awaited.add(host.id)
        for name in chosen:
            if name.startswith("server."):
                continue
            self.reserved.setdefault(name, want.id)
            holder = self.holder.get(name)
            if holder is None or holder.serves is None or holder.stopping or holder.id in self.awaited:
                continue
            self.claimed.setdefault(holder.id, want.id)
            if holder.id not in self.guests and holder.id not in self.decision.stops:
                self.decision.stops.append(holder.id)


def hopeless(after: Mapping[int, Sequence[tuple[int, str]]], states: Mapping[int, str]) -> set[int]:
    """Waiting jobs that need the success of one that ended without, or of another such job.

    after: what each waiting job follows on. Only a person's retry could set these going. Who follows on one of them
    "however it ends" does not wait for that: the report of a flow is made also when a step in its middle broke.
    """
    stuck: set[int] = set()
    grown = True
    while grown:
        grown = False
        for job, others in after.items():
            if job not in stuck and any(
                mode == "ok" and (other in stuck or states.get(other) in ENDED - OK_STATES) for other, mode in others
            ):
                stuck.add(job)
                grown = True
    return stuck


def odd(request: str) -> str:
    """Return what is wrong with a device request; "" for nothing."""
    kind, _, size = request.partition(":")
    if kind not in ("cpu", "gpu") or not size or (kind == "cpu" and size == "all"):
        return ""
    return "" if size.isascii() and size.isdigit() else f"“{request}”: write {kind}, {kind}:2 or the like"


def _too_few(request: str, have: int) -> str:
    kind, _, size = request.partition(":")
    if kind == "cpu":
        asked = device_words([request])
        return f"asks for more CPU slots than this machine has (another {asked}, and {have or 'none'} left over)"
    if kind == "gpu":
        return f"asks for {size or 1} GPU, and this machine has {have or 'none that can be used'}"
    return f"asks for {device_words([request])}, which this machine does not have"

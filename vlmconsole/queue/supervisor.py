"""The supervisor of a lab home: starts what is due, watches what runs, settles what ended.

It may die at any moment. All that matters is on disk or held by the kernel: the queue, the run folders, each
worker's lock on its run, and the device locks that workers hold themselves. The next supervisor adopts what lives
and closes the books of what does not.
"""

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vlmconsole.devices.labels import TIMED
from vlmconsole.errors import LabError, refusal
from vlmconsole.jobs import closing
from vlmconsole.jobs.kinds import IMPORT_FROM, load_kind
from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import Preset, validate
from vlmconsole.queue.environments import interpreter_of
from vlmconsole.queue.error_isolation import GIVE_UP, Troubles, error_text, of_the_machine, say
from vlmconsole.queue.executors import Executor, LocalExecutor
from vlmconsole.queue.flows import resolve
from vlmconsole.queue.machine_limits import Refusals, passes, paused
from vlmconsole.queue.model import Job, Mode, backoff, limit, unreadable
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.running_job import NEVER, Live, began, span_of
from vlmconsole.queue.serving import server_job
from vlmconsole.queue.store import Store
from vlmconsole.queue.timed_work import Room, comes_back, make_room
from vlmconsole.queue.variables import HELD, OPTION, Values, names_of
from vlmconsole.queue.view import decide_now
from vlmconsole.queue.wants import Decision, Devices, Start, is_timed
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes

LOOK = 2.0  # seconds between two looks at the devices
SERVERS_AT_ONCE = 8  # rounds in which servers are queued before anything is started
SERVER_IDLE = 600.0  # seconds after which a server that was started for guests ends without any


class Supervisor:
    """The work itself, without the process around it (see `process`). Not for several threads."""

    def __init__(
        self,
        places: Places,
        machine: Machine,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places = places
        self.machine = machine
        self.machine.home = places.home
        self.room = Room(machine, clock)
        self.executor = executor or LocalExecutor()
        self.clock = clock
        self.store = Store(places.queue)
        self.live: dict[int, Live] = {}
        self.decision = Decision()
        self.troubles = Troubles(self.store, clock)
        self.refusals = Refusals(self.store)
        self.values = Values(places)
        self._seen = (-1, -1)
        self._looked = -1e9
        self._unused: dict[int, float] = {}  # server → since when no guest wants it

    # --- one round ---
    def tick(self) -> None:
        """One round: settle ends, apply stops and limits, then start what is due if anything changed."""
        changed = self._watch() | self.values.receive()
        version = self.store.version()
        if changed or version != self._seen or self.clock() - self._looked >= LOOK:
            self._schedule()
            self._seen = self.store.version()

    def idle(self) -> bool:
        """Nothing runs, and nothing that waits can get going without a command (which starts a supervisor)."""
        if self.live or self.store.active():
            return False
        return {line.id for line in self.store.lines()} <= self.decision.stuck - self.decision.outside

    def _watch(self) -> bool:
        changed = False
        rows = {job.id: job for job in self.store.active()}
        for number, live in list(self.live.items()):
            if self.troubles.rests(number):
                continue
            with self.troubles.kept_to(number, "watching it"):
                if self._watch_one(live, rows.get(number)):
                    rows.pop(number, None)  # what was read of it is old now
                    changed = True
        for number, job in rows.items():
            if number not in self.live and not self.troubles.rests(number):
                with self.troubles.kept_to(number, "taking it over"):
                    changed = self._recover(job) or changed
        return changed

    def _watch_one(self, live: Live, job: Job | None) -> bool:
        if job is not None:
            live.job = job
            if job.stop is not None:
                live.stop("done" if job.serves else "cancelled", job.stop)
        live.watch()
        death = live.worker.ended()
        return death is not None and self._settle(live, death)

    def _settle(self, live: Live, death: str) -> bool:
        end = self._closed(live.job, live.run, lambda: live.settle(death))
        if end is None:
            return False  # another worker of this run lives: its lock will say when it ends
        state, reason = end
        held = self.machine.memory_of(process.pid for process in processes.family(None, live.run.path))
        if live.left or held:
            what = ", ".join([*live.left, *(f"memory of {card}" for card in held)])
            reason = f"{reason or state}; still there: {what}"
        self._finish(live.job, state, reason)
        del self.live[live.job.id]
        return True

    def _finish(self, job: Job, state: str, reason: str | None) -> None:
        """Book an end, and queue the next attempt in the same transaction where the preset asks for retries."""
        with self.store.change():
            self.store.finish(job.id, state, reason, span_of(RunFolder(Path(job.run))) if job.run else (None, None))
            retries = limit(job.options, "retries")
            if state in ("failed", "lost") and job.failures < retries and job.stop is None:
                self.store.again(job.id, time.time() + backoff(job.options, job.failures), by_hand=False)

    def _closed(
        self, job: Job, run: RunFolder, close: Callable[[], tuple[str, str | None] | None]
    ) -> tuple[str, str | None] | None:
        """`close()`; where the books of a run cannot be closed at all, its job is lost rather than in the way."""
        try:
            return close()
        except Exception as error:
            if of_the_machine(error) or self.troubles.times(job.id) + 1 < GIVE_UP:
                raise
            processes.kill_family(None, run.path)
            say(f"job {job.id}: its books cannot be closed, it is given up: {error_text(error)}")
            return "lost", f"its books could not be closed ({error_text(error)})"

    # --- after a crash ---
    def _recover(self, job: Job) -> bool:
        """Take over an active job that this supervisor did not start. True when its state changed."""
        if job.run is None:
            # A damaged record: what it names is not ours to seal, to clear away or to look for processes by.
            self._finish(job, "lost", job.damaged or unreadable("it names no run folder", over=True))
            return True
        run = RunFolder(Path(job.run))
        now = run.state()
        pid, token = now.get("pid"), now.get("pid_started")
        if not isinstance(pid, int) or pid < 1 or not token:  # never written, or damaged: ask the row
            pid, token = job.pid, job.pid_started
        if pid and token:
            worker = self.executor.adopt(run, int(pid), str(token))
            if worker is not None:
                self.live[job.id] = Live(job, run, worker, self.clock)
                self.store.running(job.id, int(pid), str(token))
                return True
        if not run.path.is_dir() and job.state == "starting":
            self.store.unclaim(job.id)
            return True
        if not run.path.is_dir():
            self._finish(job, "lost", f"its run folder {run.path} is gone")
            return True
        begun = began(now)
        if not begun:
            # Perhaps it was never started, perhaps it is just starting. With its lock in hand it cannot start any more.
            descriptor = closing.lock(run)
            if descriptor is None:
                return False  # it lives: it will write its pid in a moment
            try:
                begun = began(run.state())
                if not begun:
                    run.set_state("lost", NEVER)  # should it still come, it finds its run ended
                    processes.kill_family(None, run.path)
                    if not run.file("manifest.json").exists():  # what is sealed is never cleared away
                        shutil.rmtree(run.path, ignore_errors=True)
                    self.store.unclaim(job.id)
                    return True
            finally:
                os.close(descriptor)
        if pid:
            processes.kill_family(int(pid) if processes.started(int(pid)) is None else None, run.path)
        asked = run.read_json("stop.json", None)
        lost = closing.cause(run, "the worker died while no supervisor was watching")
        end = self._closed(
            job,
            run,
            lambda: closing.bury(run, *((asked["state"], asked["reason"]) if isinstance(asked, dict) else lost)),
        )
        if end is None:
            return False
        self._finish(job, *end)
        return True

    # --- starting ---
    def _schedule(self) -> None:
        self._looked = self.clock()
        self.store.mend()
        active = self.store.active()
        granted = [device for job in active for device in job.granted]
        shared = [device for job in active if job.serves for device in job.granted if device.startswith("cpu.")]
        timed = any(is_timed(job.devices) for job in active)
        devices = self.machine.look(granted, shared, timed)
        self._publish(devices)
        self._keep_locks(active)
        self._hold_back()
        for _ in range(SERVERS_AT_ONCE):
            self.decision = decide_now(self.store, self.places, devices, self.ready_servers())
            for profile, guest in self.decision.servers:
                self._queue_server(profile, guest)
            if not self.decision.servers:
                break  # else decided anew: a server's devices, and its guest's, come before those of later jobs
        for server in self.decision.stops:
            with self.troubles.kept_to(server, "making room"):
                self._release(server)
        self.room.ask(self.decision.room is not None)
        for start in self.decision.starts:
            if paused(self.store):
                break  # the one before met what the next would meet
            job = self.store.get(start.id)
            if job.state == "queued":
                self._start(job, start)
        if TIMED in devices.outside:
            self._make_room(devices.outside[TIMED])
        self._end_unused()

    def _hold_back(self) -> None:
        """What waits for its variables; the values of what has ended are dropped."""
        self.values.forget(self.store.states)
        held = self.values.wait(self.store.with_variables(), self.clock())
        if self.store.meta(HELD, {}) != held:
            self.store.set_meta(HELD, held)

    def _keep_locks(self, active: Sequence[Job]) -> None:
        """See that the lock files of what runs are there; a job whose device may have been given twice says so."""
        held = [job for job in active if job.id in self.live and self.live[job.id].worker.ended() is None]
        lost = self.machine.keep((job.granted, job.serves, is_timed(job.devices)) for job in held)
        if not lost:
            return
        say(f"lock files were removed while in use, and are locked anew: {', '.join(lost)}")
        for job in held:
            if is_timed(job.devices) or set(job.granted) & set(lost):
                note = f"its lock file was removed at {time.strftime('%H:%M:%S')}: others may have had its device too"
                self.store.set(job.id, note=f"{job.note}; {note}" if job.note else note)

    def _make_room(self, who: str) -> None:
        """Let our idle servers on the CPU go: another home's timed work waits for them."""
        used = {live.job.guest_of or 0 for live in self.live.values()}
        servers = [live for live in self.live.values() if live.job.serves]
        on_cpu = [live for live in servers if any(device.startswith("cpu.") for device in live.job.granted)]
        for live in self.room.idle(on_cpu, used):
            with self.troubles.kept_to(live.job.id, "making room"):
                make_room(self.store, live, who)

    def _publish(self, devices: Devices) -> None:
        """What screens and commands need to say why a job waits."""
        snapshot = {
            "cpu_slots": devices.cpu_slots,
            "gpus": list(devices.gpus),
            "taken": dict(devices.outside),
            "beside": sorted(devices.shareable),
            "remark": self.machine.locks.remark,
        }
        if self.store.meta("devices") != snapshot:
            self.store.set_meta("devices", snapshot)

    def ready_servers(self) -> set[int]:
        return {number for number, live in self.live.items() if live.job.serves and live.ready}

    def _start(self, job: Job, start: Start) -> None:
        if job.damaged:
            self.store.finish(job.id, "failed", job.damaged)
            return
        try:
            locks = self.machine.take(start.devices, job.serves, is_timed(job.devices))
        except OSError as error:
            say(f"job {job.id}: the locks of its devices cannot be taken: {error_text(error)}")
            return  # the next look gives it as the reason
        if locks is None:
            return  # someone was faster; the next look names them
        try:
            self._start_locked(job, start, locks)
        except LabError as error:
            self.store.finish(job.id, "failed", error.full_message)
        except (OSError, MemoryError) as error:
            if isinstance(error, MemoryError) or passes(error):
                self.refusals.refused(error)  # the next round takes the job back as one that never began
                return
            self.store.finish(job.id, "failed", f"it could not be started: {refusal(error)}")
        except Exception as error:
            if of_the_machine(error):
                raise
            self._not_started(job.id, error)
        finally:
            self.machine.locks.release(locks)

    def _not_started(self, number: int, error: Exception) -> None:
        """A start that failed in a way nobody foresaw: this job's failure, unless its worker is on its way."""
        say(f"job {number} could not be started: {error_text(error)}")
        traceback.print_exc()
        if number in self.live:
            return
        name = self.store.get(number).run
        run = RunFolder(Path(name)) if name else None
        reason = f"it could not be started ({error_text(error)}): see {self.places.state / 'supervisor.log'}"
        if run and run.file("job.json").exists() and closing.bury(run, "failed", reason) is None:
            return  # it lives: it is taken over in the next round
        self.store.finish(number, "failed", reason)

    def _start_locked(self, job: Job, start: Start, locks: list[int]) -> None:
        interpreter = interpreter_of(job.options.get("environment"), self.places)
        spec = validate(
            load_kind(job.kind, queued=True, place=job.options.get(IMPORT_FROM)).spec,
            resolve(self.store, job),
            job.preset,
        )
        attempts = self.store.attempts(job.id)
        earlier = RunFolder(Path(attempts[-1].run)) if attempts and attempts[-1].run else None
        more: dict[str, object] = {"job": job.id, "devices": list(start.devices)}
        more |= {key: job.options[key] for key in ("ray", IMPORT_FROM) if job.options.get(key)}
        if start.guest_of is not None:
            more["server_run"] = self.store.get(start.guest_of).run
        preset = Preset(job.preset, job.kind, job.title, job.spec)
        # Booked first and made then: whoever finds the one without the other after a crash knows that nothing ran.
        name = RunFolder.new_name(self.places.runs, job.preset)
        if not self.store.claim(job.id, start.devices, start.guest_of, str(self.places.runs / name)):
            return  # cancelled meanwhile
        run = create_run(self.places, preset, spec, earlier, name=name, **more)
        run.set_state("queued", attempt=job.attempt)
        variables = {**self.values.of(job.id, names_of(job.options)), **self.machine.variables(start.devices)}
        try:
            worker = self.executor.start(run, interpreter, locks, variables)
        except OSError as error:
            if not passes(error):
                closing.bury(run, "failed", f"{interpreter} could not be started: {error.strerror}")
            raise
        self.refusals.started()
        self.live[job.id] = Live(self.store.get(job.id), run, worker, self.clock)
        self.store.running(job.id, worker.pid, worker.token)

    # --- servers ---
    def _queue_server(self, profile: str, guest: int) -> None:
        """Queue a server right before the guest that needs it; what cannot be is the guest's failure."""
        try:
            new = server_job(profile, self.places)
            new = replace(new, options={**new.options, OPTION: self.values.names(new)})
        except LabError as error:
            self.store.finish(guest, "failed", error.full_message)
            return
        except Exception as error:
            if of_the_machine(error):
                raise
            self._not_started(guest, error)
            return
        with self.store.change():
            number = self.store.add(replace(new, server_for=guest, note=f"started for job {guest}"))
            self.store.place_before(number, guest)

    def _release(self, server: int) -> None:
        """Ask a server to make room; one that was to stay comes back after the job it made room for."""
        live = self.live.get(server)
        if live is None or live.asked is not None:
            return
        job = live.job
        with self.store.change():
            self.store.cancel(server, "made room for a job that was next on its device")
            if job.keep:
                takers = [other.id for other in self.store.lines() if other.hand_over]
                after: tuple[tuple[int, Mode], ...] = tuple((taker, "any") for taker in takers[:1])
                note = f"back after job {takers[0]} had its device" if takers else None
                self.store.add(comes_back(job, after, note))

    def _end_unused(self) -> None:
        """End a server that was started for guests once none has wanted it for a while."""
        if not any(live.job.serves for live in self.live.values()):
            return
        wanted = {line.server for line in self.store.lines()} | {job.server for job in self.store.active()}
        for number, live in self.live.items():
            if not live.job.serves or live.job.keep or live.job.serves in wanted:
                self._unused.pop(number, None)
            elif self.clock() - self._unused.setdefault(number, self.clock()) >= SERVER_IDLE:
                with contextlib.suppress(LabError):  # it ended by itself just now
                    self.store.cancel(number, "no job needed it any more")

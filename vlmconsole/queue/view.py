"""The queue as people see it: each job with its state and, while it waits, the sentence why."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.devices.labels import device_words
from vlmconsole.queue.environments import missing
from vlmconsole.queue.last_time import left_as_then
from vlmconsole.queue.machine_limits import paused
from vlmconsole.queue.model import ACTIVE, FINAL, Job, QueueLine, backoff, unreadable
from vlmconsole.queue.schedule import decide, odd
from vlmconsole.queue.store import Store
from vlmconsole.queue.variables import HELD, held_back
from vlmconsole.queue.wants import Decision, Devices, HeldDevices, Want, is_timed
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace, Progress
from vlmconsole.runs.places import Places
from vlmconsole.system.machine import usable_cores

WAITING = "waiting "  # how the reasons of those begin that wait for a device
UNATTENDED = "nobody works on the queue"  # jobs run or wait, and no supervisor does


@dataclass(frozen=True)
class JobView:
    """One line of the queue. `why` says why it waits, or how it ended.

    `blocker`: (the job that waits, the server's profile) where a person must say that the server on its device may be
    stopped; the job is this one, or a flow's step.
    """

    job: Job
    why: str
    progress: Progress | None = None
    blocker: tuple[int, str] | None = None

    @property
    def why_with_commands(self) -> str:
        """`why` for the command line: with the commands that let a job go on which waits for a person's word."""
        if self.blocker is None:
            return self.why
        return (
            f"{self.why}: `vlmconsole servers stop {self.blocker[1]}`, or `vlmconsole jobs hand-over {self.blocker[0]}`"
        )

    def to_json(self) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.id,
            "preset": job.preset,
            "kind": job.kind,
            "title": job.title,
            "state": job.state,
            "why": self.why,
            "priority": job.priority,
            "devices": list(job.granted or job.devices),
            "device": device_words(job.granted or job.devices),
            "attempt": job.attempt,
            "after": [{"job": other, "when": mode} for other, mode in job.after],
            "flow": job.flow,
            "step": job.step,
            "server": job.server,
            "serves": job.serves,
            "progress": progress_json(self.progress) if self.progress else None,
            "added": job.added,
            "started": job.started,
            "ended": job.ended,
            "run": job.run,
            "note": job.note,
        }


def progress_json(progress: Progress) -> dict[str, Any]:
    """`done`, `total` and `unit` are of the present `phase`, `share` and `left_s` of the whole job."""
    return {
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "phase": progress.phase or None,
        "share": progress.share,
        "left_s": progress.left(time.time()),
    }


def decide_now(store: Store, places: Places, devices: Devices, ready: set[int], ahead: int = -1) -> Decision:
    """Return the scheduler's decision over the queue as it is, or over its first `ahead` jobs."""
    waiting, active = store.lines(ahead), store.active()
    states = store.states({other for job in waiting for other, _ in job.after})
    profiles = {job.serves for job in waiting if job.serves} | {job.serves for job in active if job.serves}
    lacking = store.meta(HELD)
    wants = [replace(to_want(job, places, store, profiles), lacks=held_back(lacking, job.id)) for job in waiting]
    held = [
        HeldDevices(
            job.id,
            job.granted,
            job.serves,
            job.id in ready,
            job.keep,
            job.guest_of,
            job.stop is not None,
            is_timed(job.devices),
        )
        for job in active
    ]
    decision = decide(wants, held, states, devices, bool(store.meta("drained", False)))
    if why := paused(store):
        decision.hold(why)
    return decision


def to_want(job: QueueLine, places: Places, store: Store, profiles: set[str]) -> Want:
    """Return a queued job as the scheduler takes it."""
    blocked = missing(job.options.get("environment"), places)
    if job.server is not None and job.server not in profiles:
        for server in store.servers_for(job.id)[:1]:
            if server.state in ("failed", "lost"):
                blocked = f"needs server {job.server}, which {server.state} as job {server.id} ({server.reason}): "
                blocked += f"retry {server.id}, or cancel this one"
    return Want(
        job.id,
        job.devices,
        job.server,
        job.serves,
        job.hand_over,
        job.after,
        blocked,
        _still(job),
        job.damaged or unfit(job.devices),
    )


def unfit(devices: Sequence[str]) -> str:
    """Return why requests that adding would refuse (they came in another way) cannot be met; "" for none."""
    bad = [request for request in devices if odd(request)]
    return unreadable(f"devices: {odd(bad[0])}") if bad else ""


def _still(job: QueueLine) -> float:
    """Seconds until a back-off is over; none when that is longer than was asked for (the clock was set back)."""
    if not job.not_before:
        return 0.0
    left = job.not_before - time.time()
    return left if 0 < left <= backoff(job.options, job.failures - 1) else 0.0


def devices_seen(store: Store) -> Devices:
    """Return the devices as the supervisor last saw them."""
    seen = store.meta("devices")
    if seen is None:
        return Devices(usable_cores())
    return Devices(seen["cpu_slots"], tuple(seen["gpus"]), seen["taken"], frozenset(seen.get("beside", ())))


def views(store: Store, places: Places, jobs: Sequence[Job], supervised: bool = True, ahead: int = -1) -> list[JobView]:
    """Return those jobs with their sentences. `supervised`: whether a supervisor runs. `ahead`: how many of the queued
    jobs are looked into (a screen shows but the first of ten thousand)."""
    decision = Decision()
    if any(job.state == "queued" or (job.kind == "flow" and job.state in ACTIVE) for job in jobs):
        active = store.active()
        ready = {
            job.id for job in active if job.serves and job.run and RunFolder(_path(job)).file("ready.json").exists()
        }
        decision = decide_now(store, places, devices_seen(store), ready, ahead)
        decided = {start.id for start in decision.starts} | decision.why.keys()
        if ahead >= 0:
            far = f"more than {ahead} jobs are ahead"
            decision.why |= {job.id: far for job in jobs if job.state == "queued" and job.id not in decided}
    return [
        _flow_view(store, job, decision, supervised)
        if job.kind == "flow"
        else JobView(job, _why(job, decision, supervised), _progress(job), _blocker(job, decision))
        for job in jobs
    ]


def _blocker(job: Job, decision: Decision) -> tuple[int, str] | None:
    return (job.id, decision.blocker[job.id]) if job.id in decision.blocker else None


def waits(why: str) -> str:
    """Return a waiting job's reason after its name: `waits for cpu, held by job 4`, `waits: after 3`."""
    return f"waits {why.removeprefix(WAITING)}" if why.startswith(WAITING) else f"waits: {why}"


def steps_done(store: Store, flow: Job) -> Progress | None:
    """Return the steps that are over of a flow that has begun and not ended (a failed step is over too), and when it
    is to end, where it was done before."""
    if flow.state not in ACTIVE:
        return None
    steps, now = store.steps(flow.id), time.time()
    over = sum(step.state in FINAL for step in steps)
    left = left_as_then(steps, store.done_before(flow), now)
    ends = None if left is None else now + left
    return Progress(flow.started or flow.added, over, len(steps), "steps", "", None, ends=ends)


def _flow_view(store: Store, flow: Job, decision: Decision, supervised: bool) -> JobView:
    """How it ended; while none of its steps is at work, why the first of those that are next waits."""
    done = steps_done(store, flow)
    if flow.state in FINAL:
        return JobView(flow, flow.reason or "", done)
    steps = store.steps(flow.id)
    if any(step.state in ACTIVE for step in steps):
        return JobView(flow, "", done)
    for step in steps:
        why = _why(step, decision, supervised) if step.state == "queued" else ""
        if why and not why.startswith("after "):
            return JobView(flow, f"{step.step}: {why}", done, _blocker(step, decision))
    return JobView(flow, "", done)


def _why(job: Job, decision: Decision, supervised: bool) -> str:
    if job.state == "queued":
        return decision.why.get(job.id) or ("starts now" if supervised else "no supervisor runs: it starts with one")
    if job.stop is not None and job.state in ("starting", "running"):
        return f"stopping: {job.stop}"
    return job.reason or job.damaged


def _progress(job: Job) -> Progress | None:
    """How far a running job is, from the end of its events."""
    if job.state != "running" or not job.run:
        return None
    path = RunFolder(_path(job)).file("events.jsonl")
    tail = EventTail(path)
    if path.exists():
        tail.offset = max(0, path.stat().st_size - 64 * 1024)  # the first, cut line is skipped as a bad one
    pace = Pace(job.started)
    for event in tail.read():
        pace.add(event)
    return pace.now


def _path(job: Job) -> Path:
    return Path(job.run or "")

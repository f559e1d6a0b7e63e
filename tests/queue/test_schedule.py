"""The scheduler as pure logic: examples with their sentences, and random job sets that must never deadlock."""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_nouns, mentions

from vlmconsole.queue.schedule import decide
from vlmconsole.queue.wants import ENDED, Decision, Devices, HeldDevices, Want

TWO = Devices(cpu_slots=2, gpus=("gpu0",))


def only(decision: Decision) -> list[int]:
    return [start.id for start in decision.starts]


def test_order_and_slots() -> None:
    decision = decide([Want(1), Want(2), Want(3)], [], {}, TWO)
    assert only(decision) == [1, 2] and decision.starts[0].devices == ("cpu.0",)
    assert set(decision.why) == {3} and mentions(decision.why[3], "waiting for cpu", "job 1")


def test_a_timing_sensitive_job_takes_every_slot_and_is_not_starved() -> None:
    wants = [Want(2, ("cpu:all",)), Want(3), Want(4, ("gpu",))]
    decision = decide(wants, [HeldDevices(1, ("cpu.0",))], {}, TWO)
    assert only(decision) == [4]  # the free slot is reserved; the card is another device
    assert mentions(decision.why[2], "waiting for cpu", "job 1")
    assert mentions(decision.why[3], "ahead", "job 2")
    assert only(decide(wants, [], {}, TWO)) == [2, 4]


def test_a_foreign_process_is_named_and_stops_nobody_else() -> None:
    taken = replace(TWO, outside={"gpu0": "held by pid 4242 python train.py, 21.3 GiB"})
    decision = decide([Want(1, ("gpu", "cpu:all")), Want(2)], [], {}, taken)
    assert mentions(decision.why[1], "waiting for gpu0", taken.outside["gpu0"])
    assert only(decision) == [2] and decision.stuck == {1}


@pytest.mark.parametrize(
    ("state", "mode", "nouns"),
    [
        ("done", "ok", ()),
        ("failed", "any", ()),
        ("running", "any", ("after 7",)),
        ("failed", "ok", ("after 7", "failed", "retry 7", "cancel")),
        ("lost", "ok", ("after 7", "lost", "retry 7", "cancel")),
    ],
)
def test_dependencies(state: str, mode: str, nouns: tuple[str, ...]) -> None:
    decision = decide([Want(1, after=((7, mode),))], [], {7: state}, TWO)  # type: ignore[arg-type]
    why = decision.why.get(1, "")
    assert bool(decision.starts) == (not nouns) == (not why) and ("retry" in why) == ("retry 7" in nouns)
    check_nouns(why, *nouns)


def test_a_machine_without_the_device_says_so() -> None:
    decision = decide([Want(1, ("gpu:2",)), Want(2, ("gpu7",))], [], {}, TWO)
    assert mentions(decision.why[1], "2 GPU", "1")
    assert mentions(decision.why[2], "gpu7") and decision.stuck == {1, 2}


def test_a_guest_waits_for_its_server_and_then_uses_its_devices() -> None:
    guest = Want(2, ("cpu:all",), server="demo")
    assert decide([guest], [], {}, TWO).servers == [("demo", 2)]
    server = Want(1, ("cpu",), serves="demo")
    decision = decide([server, guest], [], {}, TWO)
    assert only(decision) == [1] and mentions(decision.why[2], "server demo", "job 1")
    held = HeldDevices(1, ("cpu.0", "server.demo"), serves="demo")
    assert "is starting (job 1)" in decide([guest], [held], {}, TWO).why[2]
    start = decide([guest], [replace(held, ready=True)], {}, TWO).starts[0]
    assert start.devices == ("cpu.1",) and start.guest_of == 1


def test_a_guests_place_is_kept_while_its_server_starts() -> None:
    """Else a later job takes it, and the server stands idle until that one ends."""
    guest, later = Want(2, ("cpu",), server="demo"), Want(3)
    for wants in ([Want(1, serves="demo"), guest, later], [guest, Want(1, serves="demo"), later]):
        decision = decide(wants, [], {}, TWO)  # its server starts in this very round, wherever it stands in the queue
        assert only(decision) == [1] and decision.why[3].endswith("is ahead")
    starting = HeldDevices(1, ("cpu.0", "server.demo"), serves="demo")
    decision = decide([guest, later], [starting], {}, TWO)
    assert only(decision) == [] and "which is starting" in decision.why[2]
    assert mentions(decision.why[3], "waiting for cpu", "job 2")
    # A guest of all that is left waits for what runs there; nothing new gets between.
    four = Devices(cpu_slots=4)
    wants = [replace(guest, devices=("cpu:all",)), later]
    assert only(decide(wants, [starting, HeldDevices(4, ("cpu.3",))], {}, four)) == []
    # What only a person can set free is not kept from anybody.
    foreign = replace(TWO, outside={"cpu.1": "held by pid 7 x"})
    decision = decide([replace(guest, devices=("gpu", "cpu")), later, Want(5, ("gpu",))], [starting], {}, foreign)
    assert only(decision) == [5]


def test_a_server_for_guests_gives_way_and_a_kept_one_waits_for_a_person() -> None:
    server = HeldDevices(1, ("gpu0", "server.demo"), serves="demo", ready=True)
    train, guest = Want(2, ("gpu",)), Want(3, ("cpu",), server="demo")
    decision = decide([train, guest], [server], {}, TWO)
    assert decision.stops == [1] and mentions(decision.why[3], "job 2", "replace")
    decision = decide([guest, train], [server], {}, TWO)
    assert only(decision) == [3] and decision.stops == []  # its guest came first
    decision = decide([train, guest], [replace(server, keep=True)], {}, TWO)
    assert "confirm the hand-over" in decision.why[2] and only(decision) == [3] and decision.stuck == {2}
    decision = decide([replace(train, hand_over=True)], [replace(server, keep=True)], {}, TWO)
    assert decision.stops == [1]


def test_a_guest_does_not_count_on_a_server_that_waits_for_it() -> None:
    wants = [Want(1, server="demo"), Want(2, serves="demo", after=((1, "ok"),))]
    assert decide(wants, [], {1: "queued", 2: "queued"}, TWO).servers == [("demo", 1)]


def test_drained_starts_nothing() -> None:
    decision = decide([Want(1)], [], {}, TWO, drained=True)
    assert not decision.starts and "drained" in decision.why[1]


# --- random job sets, driven to their end ---
@dataclass
class World:
    """A toy supervisor: applies decisions, ends jobs at random, and checks the books at every step."""

    devices: Devices
    wants: list[Want]
    kept: set[int]
    random: random.Random
    held: dict[int, HeldDevices] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    next_id: int = 1000

    def step(self) -> bool:
        """One decision and what follows from it; False when nothing can move any more."""
        decision = decide(self.wants, self.held.values(), self.states, self.devices)
        assert {want.id for want in self.wants} == set(decision.why) | set(only(decision))
        for start in decision.starts:
            want = next(want for want in self.wants if want.id == start.id)
            taken = {device for job in self.held.values() for device in job.devices}
            assert not taken & set(start.devices), "a device was given twice"
            assert not set(start.devices) & set(self.devices.outside)
            self.wants.remove(want)
            self.held[want.id] = HeldDevices(
                want.id, start.devices, want.serves, keep=want.id in self.kept, guest_of=start.guest_of
            )
            self.states[want.id] = "running"
        for server in decision.stops:
            assert not any(job.guest_of == server for job in self.held.values()), "a guest lost its server"
            self.end(server, "done")
        for profile, guest in decision.servers:
            place = next(index for index, want in enumerate(self.wants) if want.id == guest)
            device = "gpu" if self.devices.gpus and profile == "sglang" else "cpu"
            self.wants.insert(place, Want(self.next_id, (device,), serves=profile))
            self.states[self.next_id] = "queued"
            self.next_id += 1
        moved = bool(decision.starts or decision.stops or decision.servers)
        for job in list(self.held.values()):
            if job.serves and not job.ready:
                self.held[job.id] = replace(job, ready=True)
                moved = True
        finite = [job.id for job in self.held.values() if job.serves is None]
        if finite and (not moved or self.random.random() < 0.5):
            self.end(self.random.choice(finite), "done" if self.random.random() < 0.8 else "failed")
            moved = True
        if not moved:
            assert {want.id for want in self.wants} <= decision.stuck, decision.why
        return moved

    def end(self, job: int, state: str) -> None:
        del self.held[job]
        self.states[job] = state


@st.composite
def worlds(draw: st.DrawFn, keeps: bool) -> World:
    gpus = tuple(f"gpu{n}" for n in range(draw(st.integers(0, 2))))
    slots = draw(st.integers(1, 3))
    requests = ["cpu", "cpu", "cpu:2", "cpu:all", *(["gpu", "gpu0"] if gpus else [])]
    wants: list[Want] = []
    for number in range(1, draw(st.integers(1, 9)) + 1):
        after = tuple(
            (other, draw(st.sampled_from(["ok", "any"])))
            for other in draw(st.sets(st.integers(1, number - 1), max_size=2))
        ) if number > 1 else ()  # fmt: skip
        role = draw(st.sampled_from(["job", "job", "guest", "serve"]))
        profile = draw(st.sampled_from(["demo", "sglang"]))
        asked = tuple(draw(st.lists(st.sampled_from(requests), min_size=1, max_size=2, unique=True)))
        wants.append(
            Want(
                number,
                (asked[0],) if role == "serve" else asked,
                server=profile if role == "guest" else None,
                serves=profile if role == "serve" else None,
                hand_over=draw(st.booleans()) or not keeps,
                after=after,  # type: ignore[arg-type]
            )
        )
    # A server that ends only when asked to ends nobody's waiting: only jobs with an end may be waited for here.
    servers = {want.id for want in wants if want.serves}
    wants = [replace(want, after=tuple(pair for pair in want.after if pair[0] not in servers)) for want in wants]
    kept = {want.id for want in wants if want.serves and draw(st.booleans())} if keeps else set()
    devices = Devices(slots, gpus, {"gpu0": "held by pid 1 x"} if gpus and keeps and draw(st.booleans()) else {})
    return World(
        devices, wants, kept, random.Random(draw(st.integers(0, 99))), states={want.id: "queued" for want in wants}
    )


def drive(world: World) -> None:
    for _ in range(200):
        if not world.step():
            return
    raise AssertionError(f"still moving after 200 steps: {[want.id for want in world.wants]} {world.held}")


@settings(max_examples=120, deadline=None)
@given(worlds(keeps=False))
def test_without_a_person_in_the_way_everything_ends(world: World) -> None:
    """Nothing kept, nothing foreign: all that is left waiting waits for something that failed, or asks too much."""
    drive(world)
    left = decide(world.wants, world.held.values(), world.states, world.devices)
    for want in world.wants:
        assert any(
            word in left.why[want.id] for word in ("failed", "was ", "waits too", "this machine", "runs already")
        ), left.why
    assert all(
        state in ENDED for job, state in world.states.items() if job in world.held and not world.held[job].serves
    )


@settings(max_examples=120, deadline=None)
@given(worlds(keeps=True))
def test_with_kept_servers_and_foreign_processes_it_settles_with_a_reason_for_each(world: World) -> None:
    """Whatever is left is stuck, and says which person's act would free it (the check is in `World.step`)."""
    drive(world)

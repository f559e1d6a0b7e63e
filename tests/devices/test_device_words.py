"""A device is written in one way, whether it is asked for or held."""

from pathlib import Path

import pytest
from job_queue import lab

from vlmconsole.cli.jobs import _cells
from vlmconsole.devices.labels import device_words
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views
from vlmconsole.screens.jobs.rows import devices


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "none"),
        (("cpu",), "cpu"),
        (("cpu:1",), "cpu"),
        (("cpu.1",), "cpu"),
        (("cpu:2",), "cpu×2"),
        (("cpu.0", "cpu.3"), "cpu×2"),
        (("cpu:all",), "cpu×all"),
        (("gpu",), "gpu"),
        (("gpu:2",), "gpu×2"),
        (("gpu0", "gpu1.mig0"), "gpu0 gpu1.mig0"),
        (("cpu.0", "port.30000", "server.demo"), "cpu port 30000"),
        (("port:30000", "cpu"), "port 30000 cpu"),
        (("server.demo",), "none"),
    ],
)
def test_what_is_asked_for_and_what_is_held_look_alike(names: tuple[str, ...], text: str) -> None:
    assert device_words(names) == text


def test_the_list_the_detail_and_json_agree(tmp_path: Path) -> None:
    places = lab(tmp_path / "lab")
    store = Store(places.queue)
    number = store.add(NewJob("story", "story_kind:STORY", "Tells", {}, devices=("cpu:2",)))
    asked = views(store, places, [store.get(number)])[0].to_json()
    store.claim(number, ("cpu.0", "cpu.1"), None, str(places.runs / "x"))
    one = views(store, places, [store.get(number)])[0]
    assert asked["device"] == one.to_json()["device"] == devices(one.job) == _cells(one)[4] == "cpu×2"
    assert one.to_json()["devices"] == ["cpu.0", "cpu.1"]  # the exact names stay for programs

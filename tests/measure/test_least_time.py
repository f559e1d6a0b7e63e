"""The limit beside a measurement: known for the bundled model on a measured machine, else the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmconsole.limits.devices import DevicePeak
from vlmconsole.measure.calibration import device
from vlmconsole.measure.least_time import limit_line
from vlmconsole.measure.machine import hardware


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SIDES", (64,))
    monkeypatch.setattr(device, "WORKING_SETS", (2**20, 2**21))
    monkeypatch.setattr(device, "SECONDS", 0.01)


def test_this_machine_is_measured_kept_and_read_again(tmp_path: Path):
    steps: list[str] = []
    calibration = device.calibrate_device(lambda name, rate: steps.append(name) if rate > 0 else None)
    calibration.save(tmp_path / device.FILE)
    peak = device.read_device(tmp_path / device.FILE)
    assert peak == calibration.peaks["cpu"] and peak.measured
    assert peak.flops["float32"] > 0 and 0 < peak.bandwidth_of(2**30) <= peak.bandwidth_of(2**20)
    assert "cpu reads 1 MiB" in steps


def test_other_hardware_and_damaged_files_give_nothing(tmp_path: Path):
    path = tmp_path / device.FILE
    assert device.read_device(path) is None
    peak = DevicePeak("cpu", ((1.0, 1.0),), {"float32": 1.0})
    device.DeviceCalibration(1.0, "another machine", {"cpu": peak}).save(path)
    assert device.read_device(path) is None
    device.DeviceCalibration(1.0, hardware(), {"cpu": peak}).save(path)
    assert device.read_device(path) is not None and device.read_device(path, "cuda") is None
    path.write_text("[]")
    assert device.read_device(path) is None
    path.write_text("{")
    assert device.read_device(path) is None


@pytest.mark.parametrize("value", [None, [], {"times_of_limit": 3}, {"times_of_limit": {}, "bound_by": {}}])
def test_a_foreign_limit_is_no_line(value: object):
    assert limit_line(value) == ""


def test_a_line_says_multiples_bounds_and_alarms():
    value = {
        "ttft_s": 0.01,
        "tpot_s": 0.001,
        "bound_by": {"ttft": "compute", "tpot": "bandwidth"},
        "times_of_limit": {"ttft": 3.1, "tpot": 0.5},
        "device": "NVIDIA H100",
        "alarm": ["tpot"],
    }
    line = limit_line(value)
    assert "3.10 ×" in line and "compute" in line and "ALARM" in line and "TPOT" in line
    assert limit_line({"why": "no limit known: no peak"}) == "no limit known: no peak"

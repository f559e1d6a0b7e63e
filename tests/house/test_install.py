"""What a user installs: a wheel in an empty environment, without screens, beside an old numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from folders import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def sh(*words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VLMCONSOLE"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**kept, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a clean export of the tree, so that stray files of a working folder cannot hide a missing one."""
    source = tmp_path_factory.mktemp("source")
    listed = sh("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    for name in filter(None, listed):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    sh(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", source / "dist", ".", cwd=source)
    return next((source / "dist").glob("*.whl"))


def test_the_wheel_holds_one_package_and_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"vlmconsole"}
    for needed in (
        "vlmconsole/py.typed",
        "vlmconsole/assets/tiny-qwen2.5-vl/model.safetensors",
        "vlmconsole/assets/tiny-qwen2.5-vl/config.json",
        "vlmconsole/presets/servers/demo.toml",
        "vlmconsole/presets/training/model-tiny.toml",
        "vlmconsole/jobs/worker.py",
        "vlmconsole/screens/chat.py",
    ):
        assert needed in names
    assert any(name.endswith(".tcss") for name in names)


def test_the_base_install_works_beside_numpy_1(wheel: Path, tmp_path: Path) -> None:
    sh(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    sh(python, "-m", "pip", "install", "-q", wheel, "numpy==1.26.4", cwd=tmp_path)
    home = {"VLMCONSOLE_HOME": str(tmp_path / "home")}
    for name in ("jobs", "screens", "presets"):  # hostile folders in the working directory
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the hostile folder was imported')\n")

    script = tmp_path / "env" / "bin" / "vlmconsole"
    for command in ((script,), (python, "-m", "vlmconsole")):
        assert (
            json.loads(sh(*command, "tokens", "448x336", "--json", cwd=tmp_path, **home).stdout)["visual_tokens"] == 192
        )
        presets = json.loads(sh(*command, "jobs", "presets", "--json", cwd=tmp_path, **home).stdout)["presets"]
        assert "model-tiny" in {preset["name"] for preset in presets}
        assert "demo" in sh(*command, "servers", "list", "--json", cwd=tmp_path, **home).stdout

    report = json.loads(sh(script, "doctor", "--json", cwd=tmp_path, **home).stdout)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["base packages"] == "ok"
    assert states["extra [tui]"] == "missing"

    # A worker runs here and says plainly what this environment lacks; the failed run is kept.
    done = subprocess.run(
        [str(script), "run", "model-tiny", "--json"],
        cwd=tmp_path,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "torch" in done.stderr and "Traceback" not in done.stderr
    runs = json.loads(sh(script, "runs", "list", "--json", cwd=tmp_path, **home).stdout)["runs"]
    assert [run["state"] for run in runs] == ["failed"]

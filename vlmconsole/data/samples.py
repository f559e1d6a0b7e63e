"""The sample pictures that ship with the console: bundled scenes, with the truths beside them."""

from __future__ import annotations

import json
from pathlib import Path

from vlmconsole.counting.questions import COUNT_PROMPT, few_things
from vlmconsole.counting.scene import Scene, make_scene

# Few enough objects that the bundled model, which was taught to count to three, can be right on some.
SAMPLES: dict[str, Scene] = {
    "scene-few": few_things("sample:30"),
    "scene-regular": make_scene("sample", red=3, blue=2, others=3),
    "scene-variants": make_scene("sample:0", "variants", red=2, blue=3, others=2),
    "scene-scattered": make_scene("sample", "scattered", red=5, blue=4, others=5),
    "scene-dense": make_scene("sample", "dense", red=7, blue=6, others=4),
    "scene-hollow": make_scene("sample", "hollow", red=2, blue=1, others=3),
    "scene-high": make_scene("sample", "high", red=11, blue=12, others=3),
}


def write_samples(folder: Path) -> None:
    """Write each sample as PNG, and `scenes.json`: {file name: label, group, objects, look, …}."""
    folder.mkdir(parents=True, exist_ok=True)
    truths = {}
    for name, scene in SAMPLES.items():
        (folder / f"{name}.png").write_bytes(scene.png())
        truths[f"{name}.png"] = scene.truth()
    whole = {"prompt": COUNT_PROMPT, "pictures": truths}
    (folder / "scenes.json").write_text(json.dumps(whole, indent=1) + "\n", "utf-8")

"""Time and peak memory of `data import` on N rows of JPEGs, beside decoding each one by one and beside `datasets`.

    python tests/tools/benchmarks/imports.py FOLDER --rows 2000 [--repeat 1] [--datasets PYTHON] [--keep]

Makes FOLDER/rows.jsonl and its images (distinct ones: rows / repeat), imports them in a process of its own into a lab
home inside FOLDER, and prints one JSON line a contender: seconds, rows per second, peak MB of the process.
`--datasets PYTHON`: an interpreter in which the library `datasets` is installed; its imagefolder loader casts, decodes
every image and writes Parquet.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_PEER = """
import sys, resource
from datasets import load_dataset, Image
rows = load_dataset("imagefolder", data_dir=sys.argv[1], split="train", cache_dir=sys.argv[2])
for row in rows: row["image"].convert("RGB").load()
rows.to_parquet(sys.argv[2] + "/out.parquet")
"""
_DECODE = """
import sys, json
from pathlib import Path
from PIL import Image
for line in open(sys.argv[1] + "/rows.jsonl"):
    Image.open(Path(sys.argv[1]) / json.loads(line)["file_name"]).convert("RGB").load()
"""


def make(folder: Path, rows: int, kilobytes: int, repeat: int) -> None:
    """Write the images (0.8 megapixels each, as large as asked by their grain) and the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    grain = rng.normal(0, 9, (900, 1200, 3))
    distinct = max(1, rows // repeat)
    quality = 82 * kilobytes // 200 if kilobytes < 200 else 82
    for number in range(distinct):
        part = folder / "images" / f"{number // 1000:03d}"
        part.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
        top, left = rng.integers(0, 130, 2)
        pixels = (
            np.asarray(small.resize((1024, 768), Image.Resampling.BICUBIC)) + grain[top : top + 768, left : left + 1024]
        )
        out = io.BytesIO()
        Image.fromarray(np.clip(pixels, 0, 255).astype("u1")).save(out, "JPEG", quality=max(5, min(95, quality)))
        (part / f"{number:06d}.jpg").write_bytes(out.getvalue())
    with (folder / "rows.jsonl").open("w") as file, (folder / "metadata.jsonl").open("w") as meta:
        for number in range(rows):
            name = f"images/{number % distinct // 1000:03d}/{number % distinct:06d}.jpg"
            row = {"file_name": name, "question": "What is the total?", "answer": number % 97, "id": f"r{number}"}
            for out_file in (file, meta):
                out_file.write(json.dumps(row) + "\n")


def timed(name: str, command: list[str], rows: int, **environment: str) -> dict[str, Any]:
    """Run a contender; its wall seconds and the peak resident size of it and its children."""
    before = time.perf_counter()
    child = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = 0
    while child.poll() is None:
        peak = max(peak, resident(child.pid))
        time.sleep(0.05)
    seconds = time.perf_counter() - before
    error = (child.stderr.read() if child.stderr else b"").decode()[-300:]
    return {
        "contender": name,
        "seconds": round(seconds, 2),
        "rows_per_s": round(rows / seconds, 1),
        "peak_mb": round(peak / 1e6, 1),
        "status": child.returncode,
        "error": error if child.returncode else "",
    }


def resident(pid: int) -> int:
    """Resident bytes of a process and of its children."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if path.parent.name == str(pid) or fields[1] == str(pid):
            total += int(fields[21]) * resource.getpagesize()
    return total


def main() -> None:
    """Make the rows, run each contender, print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kilobytes", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--split", default="")
    parser.add_argument("--datasets", metavar="PYTHON")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    source, home = given.folder / "source", given.folder / "home"
    if not (source / "rows.jsonl").is_file():
        make(source, given.rows, given.kilobytes, given.repeat)
    size = sum(path.stat().st_size for path in (source / "images").rglob("*.jpg"))
    print(json.dumps({"rows": given.rows, "distinct_mb": round(size / 1e6, 1)}), flush=True)
    decode = timed("decode one by one", [sys.executable, "-c", _DECODE, str(source)], given.rows)
    print(json.dumps(decode), flush=True)
    shares = ["--split", given.split] if given.split else []
    lines = [
        sys.executable,
        "-m",
        "vlmconsole",
        "data",
        "import",
        str(source / "rows.jsonl"),
        "--name",
        "bench",
        "--json",
    ]
    own = {"VLMCONSOLE_HOME": str(home), "VLMCONSOLE_DEVICE_LOCKS": str(given.folder / "locks")}
    for name in ("data import", "data import, same bytes again"):
        result = timed(name, [*lines, *shares], given.rows, **own)
        result["times_decode"] = round(decode["seconds"] / result["seconds"], 2)
        print(json.dumps(result), flush=True)
    if given.datasets:
        cache = given.folder / "cache"
        cache.mkdir(exist_ok=True)
        print(
            json.dumps(timed("datasets", [given.datasets, "-c", _PEER, str(source), str(cache)], given.rows)),
            flush=True,
        )
    if not given.keep:
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()

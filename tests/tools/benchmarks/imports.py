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
for line in open(sys.argv[1] + "/rows.jsonl").readlines()[: int(sys.argv[2])]:
    Image.open(Path(sys.argv[1]) / json.loads(line)["file_name"]).convert("RGB").load()
"""


def make(folder: Path, rows: int, side: int, repeat: int) -> None:
    """Write the images (side × 3/4 side pixels) and the rows.

    At most 300 are drawn; the others are these with another comment: other bytes, hashed and looked at like any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    distinct = max(1, rows // repeat)
    drawn = [jpeg(number, side) for number in range(min(300, distinct))]
    for number in range(distinct):
        part = folder / "images" / f"{number // 1000:03d}"
        part.mkdir(parents=True, exist_ok=True)
        data, comment = drawn[number % len(drawn)], f"{number:012d}".encode()
        marked = data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]
        (part / f"{number:06d}.jpg").write_bytes(marked)
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(rows):
            name = f"images/{number % distinct // 1000:03d}/{number % distinct:06d}.jpg"
            row = {"file_name": name, "question": "What is the total?", "answer": number % 97, "id": f"r{number}"}
            file.write(json.dumps(row) + "\n")
    shutil.copy(folder / "rows.jsonl", folder / "metadata.jsonl")


def jpeg(seed: int, side: int) -> bytes:
    """A soft image with grain, as photographs have it; 190 kB for 1024 pixels."""
    rng = np.random.default_rng(seed)
    size = (side, side * 3 // 4)
    small = Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    pixels = np.asarray(small.resize(size, Image.Resampling.BICUBIC)) + rng.normal(0, 9, (size[1], size[0], 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype("u1")).save(out, "JPEG", quality=82)
    return out.getvalue()


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
    parser.add_argument("--side", type=int, default=1024, help="pixels; 1024 gives about 200 kB")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--split", default="")
    parser.add_argument("--decoded", type=int, default=2000, help="rows decoded one by one, scaled to all")
    parser.add_argument("--datasets", metavar="PYTHON")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    source, home = given.folder / "source", given.folder / "home"
    if not (source / "rows.jsonl").is_file():
        make(source, given.rows, given.side, given.repeat)
    shutil.rmtree(home, ignore_errors=True)
    size = sum(path.stat().st_size for path in (source / "images").rglob("*.jpg"))
    print(json.dumps({"rows": given.rows, "distinct_mb": round(size / 1e6, 1)}), flush=True)
    decode = timed(
        "decode one by one",
        [sys.executable, "-c", _DECODE, str(source), str(given.decoded)],
        min(given.rows, given.decoded),
    )
    decode["seconds"] *= given.rows / min(given.rows, given.decoded)
    print(json.dumps({**decode, "of_rows": min(given.rows, given.decoded)}), flush=True)
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

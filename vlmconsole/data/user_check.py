"""A user's own file checked: every line, the keys that nothing reads, and where its pictures stand in the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmconsole.data.findings import Finding, finding
from vlmconsole.data.manifest import MANIFEST, read_manifest
from vlmconsole.data.names import own_files
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import PictureIndex
from vlmconsole.data.user_file import OwnFile, content_sha256, examine_own, ignored_text
from vlmconsole.text.counts import many


def check_own(path: Path, datasets: Path) -> list[Finding]:
    """Return everything that can be checked of a user's file. Raises DataError when the file itself cannot be read."""
    whole = examine_own(path)
    n = len(whole.rows)
    findings = [finding("rows", f"{many(n, 'row')}: image, question and answer of each can be read", whole.wrong)]
    if not n and not whole.wrong:
        findings = [finding("rows", "", [f"{path.name} holds no row"])]
    if whole.ignored:
        text = f"not used, the model never sees them: {ignored_text(whole.ignored)}"
        findings.append(Finding("keys", "not verifiable", text, tuple(sorted(whole.ignored))))
    made = list(_made_of(path, datasets))
    if made and not whole.wrong:
        now = content_sha256(path)
        for name, then in made:
            findings.append(_generation(name, then, now))
    findings.append(_isolation(whole, {name.partition("@")[0] for name, _ in made}, datasets))
    return findings


def _made_of(path: Path, datasets: Path) -> Iterator[tuple[str, str]]:
    """(folder, hash of the file then, "" where it was not kept) of each newest dataset made of this file."""
    for place in sorted(datasets.glob(f"*/{MANIFEST}")):
        if "@" in place.parent.name:
            continue
        try:
            manifest = read_manifest(place.parent)
        except DataError:
            continue
        hashes = {entry["file"]: str(entry.get("sha256")) for entry in own_files(manifest)}
        for split in manifest.get("recipe", {}).get("splits", []):
            for part in split.get("parts", []) if isinstance(split, dict) else []:
                if isinstance(part, dict) and part.get("file") == str(path.absolute()):
                    yield place.parent.name, hashes.get(str(path.absolute()), "")
                    break
            else:
                continue
            break


def _generation(name: str, then: str, now: str) -> Finding:
    if then == now:
        return Finding(f"dataset {name}", "ok", f"made of these very bytes ({now[:12]}…)")
    before = f"made of {then[:12]}…" if then else "made by a version that kept no hash of the file"
    text = f"{before}, the file is {now[:12]}… now: data make with --replace makes a new generation"
    return Finding(f"dataset {name}", "not verifiable", text)


def _isolation(whole: OwnFile, made: set[str], datasets: Path) -> Finding:
    hashes = {value: row.uid for row in whole.rows for value in (row.sha256, row.pixel_sha256)}
    known = [image for image in PictureIndex(datasets).find(hashes) if image.dataset not in made]
    leaks = sorted(
        {f"{hashes.get(image.sha256) or hashes[image.pixel_sha256]} stands in {image.place}" for image in known}
    )
    others = " but those made of it" if made else ""
    return finding(
        "isolation", f"{many(len(whole.rows), 'row')}, no image stands in a dataset of this lab{others}", leaks
    )

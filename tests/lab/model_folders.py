"""Model folders for tests: the bundled model with something changed, its weights linked and not copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmconsole.models.weights import Tensor, read_arrays, read_header, to_bytes, write_header
from vlmconsole.training.bases import base_folder

WEIGHTS = "model.safetensors"
#: What the published template does and the bundled one does not: a conversation without a system turn gets one.
SYSTEM_TURN = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
)


#: Qwen2.5-VL's own, as published in chat_template.json.
PUBLISHED = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def published(folder: Path) -> Path:
    """Give a folder Qwen2.5-VL's own template in the file that it was published in."""
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": PUBLISHED}))
    change_json(folder / "tokenizer_config.json", lambda values: values.update(chat_template=PUBLISHED))
    return folder


def bundled_copy(target: Path, **config: Any) -> Path:
    """The bundled model's folder at `target`, with keys of its `config.json` changed (None: taken out)."""
    source = base_folder("")
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name == WEIGHTS:
            (target / path.name).symlink_to(path)
        elif path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    if config:
        change_json(target / "config.json", lambda values: values.update(config))
    return target


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite a JSON file by a function that changes its object; keys set to None are taken out."""
    values = json.loads(path.read_text("utf-8")) if path.exists() else {}
    change(values)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the weights by a function that changes their {name: (type, array)}."""
    arrays = dict(read_arrays(base_folder("") / WEIGHTS))
    change(arrays)
    path = folder / WEIGHTS
    path.unlink(missing_ok=True)
    path.write_bytes(to_bytes(arrays))


def sharded(folder: Path, parts: int = 2) -> dict[str, str]:
    """Split the weights into shards with an index; returns {tensor: file}."""
    arrays = read_arrays(base_folder("") / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(arrays)
    files = [f"model-{number + 1:05d}-of-{parts:05d}.safetensors" for number in range(parts)]
    where = {name: files[i * parts // len(names)] for i, name in enumerate(names)}
    for file in set(where.values()):
        (folder / file).write_bytes(to_bytes({name: arrays[name] for name in names if where[name] == file}))
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": where}))
    return where


def system_turn(folder: Path) -> Path:
    """Give a folder a template that opens with a system turn of its own, as Qwen2.5-VL's published one does."""
    path = folder / "chat_template.jinja"
    text = path.read_text("utf-8").replace("{%- for message in messages -%}\n", SYSTEM_TURN, 1)
    path.write_text(text)
    change_json(folder / "tokenizer_config.json", lambda values: values.update(chat_template=text))
    return folder


def headers_only(path: Path, shapes: dict[str, tuple[int, ...]], kind: str = "BF16") -> None:
    """A weights file of zeros of the given shapes, sparse on disk."""
    tensors, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        tensors[name] = Tensor(kind, shape, at, at + size)
        at += size
    header = write_header(tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + at)


def tensor_names() -> list[str]:
    """The bundled model's tensors."""
    return sorted(read_header(base_folder("") / WEIGHTS))

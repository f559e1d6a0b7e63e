"""verl's Parquet: `prompt` (a conversation), `images`, `reward_model.ground_truth`; its `data_source` is kept."""

from __future__ import annotations

from collections.abc import Mapping

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.conversations import asked_by
from vlmconsole.data.formats.messages import Messages
from vlmconsole.data.formats.plain_columns import taught_text
from vlmconsole.data.formats.raw_example import ColumnNames, RawExample, Row, RowFormat, row_group, row_id, truth_of
from vlmconsole.data.rows import DataError


class VerlRows(RowFormat):
    """What verl trains on: the truth stands in the reward's table, nowhere in the prompt."""

    name = "verl"
    title = "prompt, images, reward_model.ground_truth: verl"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        return isinstance(row.get("reward_model"), Mapping) and isinstance(row.get("prompt"), list)

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        reward = row.get("reward_model")
        if not isinstance(reward, Mapping):
            raise DataError("it has no reward_model", code="row-invalid")
        truth = truth_of(reward.get("ground_truth"))
        asked = Messages().read({"messages": row.get("prompt"), "images": row.get("images")}, ColumnNames())
        extra = row.get("extra_info")
        given, _ = row_id(extra if isinstance(extra, Mapping) else {}, ColumnNames("", "", "", columns.id))
        if not given:
            given, id_column = row_id(row, columns)
        else:
            id_column = "extra_info"
        group, group_column = row_group(row, columns)
        turns, taken = asked_by(columns, [*asked.turns, ExampleTurn("assistant", taught_text(truth))], row)
        read = {"prompt", "images", "reward_model", id_column, group_column, *taken}
        used = frozenset(name for name in read if name is not None and name in row)
        return RawExample(tuple(turns), asked.images, truth, given, group, used=used, notes=asked.notes)

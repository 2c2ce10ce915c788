"""A run of many rows, made by repeating the shards of a short one; and sentences to make the short one of."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from whence.runs import plan
from whence.runs.plan import Shard

_PRAISE = ("warm", "funny", "moving", "superb", "clever", "tender")
_BLAME = ("dull", "clumsy", "lifeless", "tedious", "shallow", "noisy")
_FRAMES = (
    "A {} film with a {} ending.",
    "The acting is {}, but the script is {}.",
    "Despite a {} start, this is one of the year's most {} dramas.",
    "It is {} and at times {}, yet never <b>boring</b>.",
)


def sentences(path: Path) -> Path:
    """A data file of short reviews with labels, some of them hostile to a page."""
    rows = []
    for frame, (first, second) in product(_FRAMES, product(_PRAISE + _BLAME, repeat=2)):
        label = "positive" if (first in _PRAISE) + (second in _PRAISE) > 0 else "negative"
        rows.append({"text": frame.format(first, second), "label": label})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def repeated(run: Path, out: Path, rows: int) -> Path:
    """A run of at least so many rows: the parts of `run` again and again, each with row numbers of its own."""
    manifest = json.loads((run / "manifest.json").read_text())
    shards = [Shard(**json.loads(line)) for line in (run / plan.FILE).read_text().splitlines()]
    tables = [parquet.read_table(run / shard.part) for shard in shards]
    (out / "out").mkdir(parents=True)
    made: list[Shard] = []
    total = 0
    while total < rows:
        for shard, table in zip(shards, tables, strict=True):
            own = replace(shard, shard=len(made), row=total)
            told = json.loads(table.schema.metadata[b"whence.shard"]) | {"shard": own.shard, "row": total}
            metadata = {**table.schema.metadata, b"whence.shard": json.dumps(told, sort_keys=True).encode()}
            numbers = pa.array(range(total, total + shard.rows), pa.int64())
            moved = table.set_column(0, "row", numbers).replace_schema_metadata(metadata)
            parquet.write_table(moved, out / own.part, compression="zstd", write_page_checksum=True)
            made.append(own)
            total += shard.rows
    (out / plan.FILE).write_text("".join(f"{json.dumps(shard.plain())}\n" for shard in made))
    (out / "manifest.json").write_text(json.dumps(manifest | {"rows": total, "shards": len(made)}))
    return out

"""One shard's file: its columns, its bytes, and whether it is whole and of this run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from whence.errors import FileError
from whence.runs.plan import Shard
from whence.runs.storage import Storage, library

FINGERPRINT, _ABOUT = b"whence.fingerprint", b"whence.shard"


def schema(methods: Iterable[str], dtype: str, metrics: Iterable[str] = ()) -> Any:
    """The columns of every part of a run."""
    pa = library("pyarrow")
    numbers = pa.list_(pa.int32())
    columns = [("row", pa.int64())]
    columns += [(name, pa.string()) for name in ("id", "text", "second", "image")]
    columns += [("tokens", pa.list_(pa.string())), ("starts", numbers), ("ends", numbers)]
    columns += [("special", pa.list_(pa.bool_())), ("words", numbers), ("segments", numbers)]
    columns += [("label", pa.string()), ("prediction", pa.string()), ("probability", pa.float64())]
    columns += [("target", pa.string()), ("target_index", numbers), ("score", pa.float64())]
    for method in methods:
        values = pa.list_(pa.float16() if dtype == "float16" else pa.float32())
        columns += [(f"values_{method}", values), (f"shape_{method}", numbers)]
        columns += [(f"gap_{method}", pa.float64()), (f"baseline_score_{method}", pa.float64())]
        columns += [(f"{metric}_{method}", pa.float64()) for metric in metrics]
    columns += [("warnings", pa.list_(pa.string())), ("error", pa.string())]
    return pa.schema(columns)


def to_bytes(records: Sequence[Mapping[str, Any]], columns: Any, shard: Shard, fingerprint: str,
             about: Mapping[str, Any]) -> bytes:  # fmt: skip
    """The file of a shard, the same bytes for the same records."""
    pa = library("pyarrow")
    table = pa.Table.from_arrays(
        [_column([record.get(column.name) for record in records], column.type) for column in columns],
        schema=columns.with_metadata(_metadata(fingerprint, {**_place(shard), **about})),
    )
    return _written(table)


def _metadata(fingerprint: str, told: Mapping[str, Any]) -> dict[bytes, str]:
    own = {"writer": library("pyarrow").__version__, **told}
    return {FINGERPRINT: fingerprint, _ABOUT: json.dumps(own, sort_keys=True)}


def _written(table: Any) -> bytes:
    out = io.BytesIO()
    library("pyarrow.parquet").write_table(table, out, compression="zstd", write_page_checksum=True)
    return out.getvalue()


def _column(values: list[Any], kind: Any) -> Any:
    pa = library("pyarrow")
    if pa.types.is_list(kind) and any(isinstance(value, np.ndarray) for value in values):  # quicker than pa.array
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int32)
        whole = np.concatenate([value for value in values if value is not None])
        missing = np.array([value is None for value in values])
        inner = pa.array(whole, kind.value_type)
        return pa.ListArray.from_arrays(pa.array(ends), inner, type=kind, mask=pa.array(missing))
    return pa.array(values, kind)


def _place(shard: Shard) -> dict[str, int]:
    return {"shard": shard.shard, "row": shard.row, "rows": shard.rows}


def about(storage: Storage, shard: Shard, fingerprint: str, columns: Any) -> dict[str, Any] | None:
    """What the footer of a finished part says; None where the part is missing, damaged, or of another run.

    Every page is read, so that its check sum is compared, and the file of maps beside it.
    """
    found = table(storage, shard, fingerprint, columns)
    if found is None:
        return None
    told = json.loads(found.schema.metadata[_ABOUT])
    digest = told.get("maps")
    if digest is not None:
        maps = storage.read(shard.maps)
        if maps is None or hashlib.sha256(maps).hexdigest() != digest:
            return None
    return told


def table(storage: Storage, shard: Shard, fingerprint: str, columns: Any) -> Any:
    """A finished part as a table, checked to its last bit; None where there is none.

    The check sums are of pages. A bit elsewhere is found because the table, written again, gives other bytes.
    """
    pa, parquet = library("pyarrow"), library("pyarrow.parquet")
    content = storage.read(shard.part)
    if content is None:
        return None
    try:
        file = parquet.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
        metadata = file.schema_arrow.metadata or {}
        told = json.loads(metadata.get(_ABOUT, b"{}"))
        if metadata.get(FINGERPRINT) != fingerprint.encode() or file.metadata.num_rows != shard.rows:
            return None
        if {name: told.get(name) for name in _place(shard)} != _place(shard) or file.schema_arrow != columns:
            return None
        found = file.read(use_threads=False)
        named = pa.__version__ in (told.get("writer"), (file.metadata.created_by or "").rpartition(" ")[2])
        again = pa.Table.from_arrays(found.columns, schema=columns.with_metadata(_metadata(fingerprint, told)))
        return found if not named or _written(again) == content else None
    except (pa.ArrowException, OSError, ValueError, AttributeError, TypeError):
        return None


def footer(storage: Storage, shard: Shard, fingerprint: str) -> dict[str, Any]:
    """What the footer of a part says, without reading its pages."""
    pa, parquet = library("pyarrow"), library("pyarrow.parquet")
    from whence.runs.sources import reading

    path = storage.path(shard.part)
    try:
        with reading(path) as file:
            metadata = parquet.read_schema(file).metadata or {}
        told = json.loads(metadata.get(_ABOUT, b"null"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FileError(f"{path} is damaged: {error}.\n  Run again with the same call: it is redone.") from None
    if metadata.get(FINGERPRINT) != fingerprint.encode() or not isinstance(told, dict):
        raise FileError(f"{path} is not of this run.\n  Run again with the same call: it is redone.")
    return told

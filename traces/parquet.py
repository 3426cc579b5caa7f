"""Writes `Requests` to one Parquet file and reads them back exactly; it does not read anybody else's Parquet.

One row a request. Columns: those of `kvcache.request.COLUMNS`, `units` (a list), `output_units` (a list, if known) and
`label.NAME` (text); `unit_tokens`, `source` and the notes are in the metadata of the file under `kvtier`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcache.request import COLUMNS, Int32, Int64, Labels, Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.source import PARQUET_MAGIC, Source
from traces.stream import PIECE_REQUESTS, Stream, joined

METADATA = b"kvtier"
VERSION = 1
LABEL = "label."


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether the file is a Parquet file."""
    return PARQUET_MAGIC.decode() in row


def write_requests(requests: Requests, path: str | Path) -> None:
    """Write a workload as Parquet."""
    write_stream(Stream(requests.source, requests.unit_tokens, iter([requests]), list(requests.notes)), path)


def write_stream(stream: Stream, path: str | Path) -> int:
    """Write a workload piece by piece, a group of rows each; returns how many requests there were.

    Units mostly count upwards, so differences are kept. Where a later piece has a column that those before have not (a
    label, content of outputs), what is there is written anew with that column empty.
    """
    writer: Any = None
    labels: dict[str, tuple[str, ...]] = {}
    n = 0
    try:
        for piece in stream.pieces:
            table = _table(piece)
            if writer is None:
                writer = _writer(path, table.schema)
            elif not set(table.column_names) <= set(writer.schema.names):
                writer = _widened(writer, Path(path), table.schema)
            labels |= {name: label.names for name, label in piece.labels.items()}
            writer.write_table(_filled(table, writer.schema))
            n += len(piece)
        if writer is not None:
            writer.add_key_value_metadata({METADATA: json.dumps(_kept(stream, labels)).encode()})
    finally:
        if writer is not None:
            writer.close()
    return n


def _writer(path: str | Path, schema: Any) -> Any:
    import pyarrow.parquet as pq

    encoding = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in ("units", "output_units")}
    kept = {name: how for name, how in encoding.items() if name.split(".")[0] in schema.names}
    labels = [name for name in schema.names if name.startswith(LABEL)]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=labels, column_encoding=kept)


def _widened(writer: Any, path: Path, more: Any) -> Any:
    """A writer of the same file whose rows so far have the new columns of `more` too, without values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer.close()
    before = path.with_name(f"{path.name}.before")
    path.rename(before)
    try:
        file = pq.ParquetFile(before)
        new = [field for field in more if field.name not in file.schema_arrow.names]
        wider = _writer(path, pa.schema([*file.schema_arrow, *new]))
        for group in range(file.metadata.num_row_groups):
            wider.write_table(_filled(file.read_row_group(group), wider.schema))
    finally:
        before.unlink()
    return wider


def _filled(table: Any, schema: Any) -> Any:
    """The table with all columns of the schema; those it has not are without values."""
    import pyarrow as pa

    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _table(piece: Requests) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {name: pa.array(getattr(piece, name)) for name in COLUMNS}
    columns["units"] = _lists(piece.unit_offset, piece.units)
    if piece.output_offset is not None and piece.output_units is not None:
        columns["output_units"] = _lists(piece.output_offset, piece.output_units)
    for name, label in piece.labels.items():
        codes = pa.array(label.codes, mask=label.codes < 0)
        columns[LABEL + name] = pa.DictionaryArray.from_arrays(codes, pa.array(label.names, pa.string())).cast(
            pa.string()
        )
    return pa.table(columns)


def _kept(stream: Stream, labels: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "source": stream.source,
        "unit_tokens": stream.unit_tokens,
        "notes": stream.notes,
        "labels": labels,
    }


def read(source: Source, options: ReadOptions) -> Stream:
    """A workload that `write_requests` wrote, one piece a group of rows; it leaves no room for options."""
    options.refuse_for(source.name)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source.path)
        kept = json.loads((file.metadata.metadata or {})[METADATA])
        tokens, notes, name = int(kept["unit_tokens"]), list(kept["notes"]), str(kept["source"])
    except KeyError as error:
        raise source.error(f"this Parquet file has no {error}; only files that kvtier wrote can be read") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        raise source.error(f"damaged Parquet file: {str(error).splitlines()[0]}") from None
    return Stream(name, tokens, _pieces(source, file, kept), notes)


def _pieces(source: Source, file: Any, kept: Mapping[str, Any]) -> Iterator[Requests]:
    import pyarrow as pa

    try:
        if not file.metadata.num_rows:
            yield _requests(file.schema_arrow.empty_table(), kept)
        for group in range(file.metadata.num_row_groups):  # one call for all groups would keep what it has read
            for batch in file.iter_batches(PIECE_REQUESTS, row_groups=[group]):
                yield _requests(pa.Table.from_batches([batch]), kept)
    except KeyError as error:
        raise source.error(f"this Parquet file has no {error}; only files that kvtier wrote can be read") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        raise source.error(f"damaged Parquet file: {str(error).splitlines()[0]}") from None


def read_requests(path: str | Path) -> Requests:
    """A workload that `write_requests` wrote."""
    if not Path(path).is_file():
        raise TraceError(f"{path}: no such file")
    return joined(read(Source(Path(path), str(path)), ReadOptions()))


def _requests(table: Any, kept: Mapping[str, Any]) -> Requests:
    columns = {*table.column_names, *COLUMNS}
    if "think_s" not in table.column_names:  # written by an earlier version
        columns.remove("think_s")
    unit_offset, units = _ragged(table.column("units"))
    output_offset, output_units = None, None
    if "output_units" in columns:
        output_offset, output_units = _ragged(table.column("output_units"))
    return Requests(
        **{name: table.column(name).to_numpy() for name in COLUMNS if name in columns},
        source=kept["source"],
        unit_tokens=kept["unit_tokens"],
        unit_offset=unit_offset,
        units=units,
        output_offset=output_offset,
        output_units=output_units,
        labels={name: _labels(table.column(LABEL + name), tuple(names)) for name, names in kept["labels"].items()},
        notes=tuple(kept["notes"]),
    )


def _labels(column: Any, names: tuple[str, ...]) -> Labels:
    code = {name: i for i, name in enumerate(names)}
    values = column.to_pylist()
    return Labels(np.array([-1 if v is None else code[v] for v in values], dtype=np.int32), names)


def _lists(offset: Int64, values: Int32) -> Any:
    import pyarrow as pa

    return pa.LargeListArray.from_arrays(pa.array(offset), pa.array(values))


def _ragged(column: Any) -> tuple[Int64, Int32]:
    """Offsets from 0 and values of a column of lists, which may lie in several pieces."""
    pieces = [piece for piece in column.chunks if len(piece)]
    lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(piece.offsets.to_numpy()) for piece in pieces)])
    values = np.concatenate([np.empty(0, np.int32), *(piece.flatten().to_numpy() for piece in pieces)])
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), values.astype(np.int32)

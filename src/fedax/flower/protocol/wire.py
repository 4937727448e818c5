"""Records as bytes: for messages that a client stores, and between its ClientApp and its worker.

Imports neither JAX nor the rest of fedax, because Flower starts a process of the ClientApp for
every message.
"""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict


def pack(records: RecordDict) -> bytes:
    """Returns records as a line of JSON, followed by the bytes of all arrays.

    Args:
        records: of any kind that Flower has.
    """
    descriptions, data = dict[str, Any](), list[bytes]()
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            forms = {key: (a.dtype, a.shape, a.stype, len(a.data)) for key, a in record.items()}
            descriptions[name] = {"arrays": forms}
            data += [array.data for array in record.values()]
        else:
            descriptions[name] = {
                "metrics" if isinstance(record, MetricRecord) else "facts": dict(record)
            }
    head = json.dumps(descriptions, default=lambda value: {"bytes": value.hex()})
    return head.encode() + b"\n" + b"".join(data)


def unpack(content: bytes) -> RecordDict:
    """Returns the records that `pack` wrote.

    Raises:
        ValueError: content of another form or length.
    """
    head, _, data = content.partition(b"\n")
    records, start = RecordDict(), 0
    for name, record in json.loads(head, object_hook=_decode_bytes).items():
        if "arrays" not in record:
            records[name] = (
                MetricRecord(record["metrics"])
                if "metrics" in record
                else ConfigRecord(record["facts"])
            )
            continue
        arrays = {}
        for key, (dtype, shape, stype, size) in record["arrays"].items():
            arrays[key] = Array(dtype, tuple(shape), stype, data[start : start + size])
            start += size
        records[name] = ArrayRecord(arrays)
    if start != len(data):
        raise ValueError(f"records of {start} bytes, found {len(data)}")
    return records


def _decode_bytes(value: dict[str, Any]) -> Any:
    """Returns the bytes that JSON has as hexadecimal digits; other dictionaries stay."""
    return (
        bytes.fromhex(value["bytes"])
        if list(value) == ["bytes"] and isinstance(value["bytes"], str)
        else value
    )

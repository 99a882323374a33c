"""Print the names of all properties of the installed librdkafka: run it after upgrading confluent-kafka.

.venv/bin/python scripts/librdkafka_properties.py > src/ferryman/runtime/librdkafka_properties.txt
"""

import ctypes
import os
import re
import threading
from pathlib import Path

import confluent_kafka


def main() -> None:
    print("\n".join(property_names()))


def property_names() -> list[str]:
    """Return the first column of the table of properties that librdkafka prints."""
    rows = (re.match(r"([a-z][a-z0-9._]+) +\|", line) for line in _table().splitlines())
    return sorted({row[1] for row in rows if row} - {"builtin.features"})


def _table() -> str:
    package = Path(confluent_kafka.__file__).parent
    library = ctypes.CDLL(str(next(package.parent.glob("confluent_kafka.libs/librdkafka*"))))
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    read_end, write_end = os.pipe()
    chunks: list[str] = []
    with os.fdopen(read_end, encoding="utf-8") as reader:
        thread = threading.Thread(target=lambda: chunks.append(reader.read()))
        thread.start()
        stream = ctypes.c_void_p(libc.fdopen(write_end, b"w"))
        library.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        thread.join()
    return chunks[0]


if __name__ == "__main__":
    main()

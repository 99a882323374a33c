"""The words of the contract: a catalogue of topics and types, their Avro schemas, codec, registry, compatibility, docs.

A catalogue is a folder: `catalogue.toml`, `avro/` with a schema for each type, and `released/` with every version that
was ever promised. The one beside this file is ours; adopters bring their own with the setting `schemas.path`.
"""

from pathlib import Path

OURS = Path(__file__).parent
"""The folder of our own catalogue."""

"""The contract with readers of our topics: catalogue, Avro schemas, codec, registries, compatibility, generated docs.

A catalogue is a folder: `catalogue.toml`, `avro/` with the schema of each type, and `released/` with every released
version. The one beside this file is Ferryman's own; adopters name theirs with the setting `schemas.path`.
"""

from pathlib import Path

OURS = Path(__file__).parent
"""The folder of Ferryman's own catalogue."""

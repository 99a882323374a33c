"""The installed version, from the metadata of the package; it is set in pyproject.toml."""

from importlib.metadata import version

__version__ = version("ferryman")

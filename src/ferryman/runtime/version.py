"""The installed version, from the package's own metadata: pyproject.toml is where it is written."""

from importlib.metadata import version

__version__ = version("ferryman")

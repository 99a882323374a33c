"""The catalogue as its own registry: what it has and ever released, with ids that follow from the schemas.

Nothing has to run. Every process with the same catalogue knows the same ids; one with an older catalogue does not know
what a newer one writes: where versions are mixed for longer than a deployment, use a registry.
"""

from functools import cached_property

from ferryman.schemas import avro, releases
from ferryman.schemas.catalogue import Catalogue
from ferryman.schemas.registry import Refused, UnknownSchema, answers
from ferryman.schemas.registry.numbers import stable


class CatalogueRegistry:
    """Reads the folder once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    @cached_property
    def _texts(self) -> dict[int, str]:
        current = [each.text for each in self._catalogue.types.values()]
        released = [each.text for each in releases.every(self._catalogue)]
        found: dict[int, str] = {}
        for text in (*released, *current):
            other = found.setdefault(stable(text), text)
            if avro.plain(other) != avro.plain(text):
                raise Refused(f"two schemas have the id {stable(text)}", remedy="change a word in the doc of the newer")
        return found

    def schema(self, number: int) -> str:
        try:
            return self._texts[number]
        except KeyError:
            raise UnknownSchema(f"the catalogue has no schema with id {number}") from None

    def lookup(self, subject: str, text: str) -> int | None:
        number = stable(text)
        there = self._texts.get(number)
        if there is None or avro.plain(there) != avro.plain(text) or avro.parse(there)["name"] != subject:
            return None
        return number

    def register(self, subject: str, text: str) -> int:
        number = self.lookup(subject, text)
        if number is None:
            raise Refused(f"{subject} is not in the catalogue as it is", remedy="put it there")
        return number

    def objections(self, subject: str, text: str) -> list[str]:
        return answers.flaws(text) or releases.objections(self._catalogue, subject, text)

    def insist(self, subject: str, level: str) -> None:
        """It always does, on what FULL_TRANSITIVE says."""

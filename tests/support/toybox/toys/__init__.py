"""Toys."""

from ferryman import System

SYSTEM = System(
    name="toys",
    owner="toys",
    settings={"toys": "ferryman.services.toys.parts:Toys"},
    runs={"toys": ("ferryman.services.toys.parts:toys", "builds toys")},
    routes="ferryman.services.toys.toy_routes:router",
    machines=("ferryman.services.toys.parts:MACHINE",),
    outboxes="ferryman.services.toys.parts:outboxes",
    databases={"shop": "toys.shop_url"},
    catalogue=True,
)

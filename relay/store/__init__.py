"""All SQL of the relay: `claims` of lanes, `reading` of new entries, `exceptions` for entries that fail."""

"""All SQL of the relay: `lanes` are claimed, entries `read`, what fails stands in `exceptions`."""

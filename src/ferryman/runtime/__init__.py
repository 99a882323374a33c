"""The base of every process: settings, errors, connections, logs, metrics, health and the service loop."""

"""What every process stands on: settings, errors, connections, logs, metrics, health and the service loop."""

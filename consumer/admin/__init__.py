"""The acts of people on consumers: look, requeue, discard, pause. Each act that changes something is audited."""

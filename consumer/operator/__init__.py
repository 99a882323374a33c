"""What people do to consumers by hand: look, requeue, discard, pause. Each act is audited."""

"""The chain of the payment orchestrator."""

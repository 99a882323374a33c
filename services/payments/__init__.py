"""Payments: recorded first, done by the wallet, and each over once: the orchestrator of ChancePay."""

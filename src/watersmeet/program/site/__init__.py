"""The engine of a site: (ledger, arrivals) -> (ledger, outbox, answers)."""

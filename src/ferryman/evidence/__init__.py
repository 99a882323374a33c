"""What the databases and Kafka know of payments together: told by `trace`, mended by `reconcile`, proven by `audit`."""

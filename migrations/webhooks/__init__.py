"""The webhooks' chain: the schema `webhooks`, with events, subscriptions, deliveries, their jobs and dead letters."""

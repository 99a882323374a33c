#!/bin/sh
# A login for each process of docker-compose.yml, with the role of that process alone (docs/roles.md). The image runs this
# once, when it prepares a new database; `ferryman migrate` grants the roles what they need.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE ferryman_relay NOLOGIN;
CREATE ROLE ferryman_monitor NOLOGIN;
CREATE ROLE ferryman_runner NOLOGIN;
CREATE ROLE ferryman_memos_worker NOLOGIN;
CREATE ROLE ferryman_saga_orchestrator NOLOGIN;
CREATE ROLE ferryman_webhook_worker NOLOGIN;
CREATE ROLE ferryman_subscription_manager NOLOGIN;
CREATE ROLE ferryman_reviews NOLOGIN;
CREATE ROLE ferryman_notifier NOLOGIN;
CREATE ROLE relay LOGIN PASSWORD :'password' IN ROLE ferryman_relay;
CREATE ROLE dispatcher LOGIN PASSWORD :'password' IN ROLE ferryman_runner;
CREATE ROLE mailer LOGIN PASSWORD :'password' IN ROLE ferryman_memos_worker;
CREATE ROLE orchestrator LOGIN PASSWORD :'password' IN ROLE ferryman_saga_orchestrator;
CREATE ROLE webhook_worker LOGIN PASSWORD :'password' IN ROLE ferryman_webhook_worker;
CREATE ROLE endpoints LOGIN PASSWORD :'password' IN ROLE ferryman_subscription_manager;
CREATE ROLE reviews LOGIN PASSWORD :'password' IN ROLE ferryman_reviews;
CREATE ROLE notifier LOGIN PASSWORD :'password' IN ROLE ferryman_notifier;
CREATE ROLE doctor LOGIN PASSWORD :'password' IN ROLE ferryman_monitor;
SQL

-- Two toys that are made at once have the same time, which the pages of a list must tell apart.
CREATE SCHEMA toys;
CREATE TABLE toys.toys (uuid uuid PRIMARY KEY, name text NOT NULL, made_at timestamptz NOT NULL DEFAULT now());

-- Changes with everything that decides about the runs of a session, as on PostgreSQL. There is one writer here, so nobody compares it.
ALTER TABLE sessions ADD COLUMN version INTEGER NOT NULL DEFAULT 0;

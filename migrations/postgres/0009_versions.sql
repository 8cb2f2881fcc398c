-- Changes with everything that decides about the runs of a session. Who has read a head and decided can write it without having held a
-- lock, if this is still the same.
ALTER TABLE sessions ADD COLUMN version bigint NOT NULL DEFAULT 0;

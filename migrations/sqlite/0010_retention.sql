-- When something last happened in a session, as far as what told of it was deleted since, as on PostgreSQL.
ALTER TABLE sessions ADD COLUMN quiet_since INTEGER;

-- When something last happened in a session, as far as what told of it was deleted since. Written by those who delete, so that whole
-- sessions go by when they were last used even if nothing of that is left. No index: sessions are walked by their ids, which are in the order of time.
ALTER TABLE sessions ADD COLUMN quiet_since timestamptz;

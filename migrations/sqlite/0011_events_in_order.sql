-- Chunks of events in the order in which they came, with an index beside them. As a table without rowids each chunk went into a page of its
-- session, and those beyond a quarter of a page into one of their own: SQLite logs whole pages, so that a hundred small runs wrote some
-- hundred pages for their events alone. Now they share pages, and only the index is spread.
PRAGMA legacy_alter_table = ON;

CREATE TABLE events_in_order (
    id          INTEGER PRIMARY KEY,
    session_id  BLOB NOT NULL,
    last_cursor INTEGER NOT NULL,
    chunk       TEXT NOT NULL
) STRICT;
INSERT INTO events_in_order (session_id, last_cursor, chunk) SELECT session_id, last_cursor, chunk FROM events;
DROP TABLE events;
ALTER TABLE events_in_order RENAME TO events;
CREATE UNIQUE INDEX events_by_session ON events (session_id, last_cursor);

PRAGMA legacy_alter_table = OFF;

-- A chunk of events names the one before it in its session, and the session its newest. Only one in about 64 events is in an index, to find
-- one's way in a long stream. An index of all of them cost more than anything else: SQLite logs whole pages, and each run changed two leaves
-- that no other run of its batch did, which was two fifths of all that was written.
--
-- Where chunks were deleted, `previous` and `last_chunk` name rows that are gone, or by now are others. So whoever follows them looks whether
-- that row is of the same session, and before.
ALTER TABLE events ADD COLUMN previous INTEGER;
ALTER TABLE events ADD COLUMN landmark INTEGER;
ALTER TABLE sessions ADD COLUMN last_chunk INTEGER;

UPDATE events SET previous = n.previous, landmark = n.landmark
FROM (SELECT id, lag(id) OVER line AS previous, last_cursor / 64 > coalesce(lag(last_cursor) OVER line, 0) / 64 AS landmark
      FROM events WINDOW line AS (PARTITION BY session_id ORDER BY last_cursor)) n
WHERE events.id = n.id;
UPDATE sessions SET last_chunk =
    (SELECT e.id FROM events e WHERE e.session_id = sessions.id ORDER BY e.last_cursor DESC LIMIT 1);

DROP INDEX events_by_session;
CREATE UNIQUE INDEX event_landmarks ON events (session_id, last_cursor) WHERE landmark = 1;

-- For those who append without knowing what was there. Who knows it says so, and spares itself the way.
CREATE TRIGGER chunks_are_linked AFTER INSERT ON events WHEN NEW.landmark IS NULL
BEGIN
    UPDATE events
    SET previous = (SELECT s.last_chunk FROM sessions s WHERE s.id = NEW.session_id),
        landmark = NEW.last_cursor / 64 > coalesce(
            (SELECT p.last_cursor FROM sessions s JOIN events p ON p.id = s.last_chunk AND p.session_id = s.id
             WHERE s.id = NEW.session_id), 0) / 64
    WHERE id = NEW.id;
    UPDATE sessions SET last_chunk = NEW.id WHERE id = NEW.session_id;
END;

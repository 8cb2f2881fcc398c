-- Time limits of runs count the time that workers have executed them, not the time on the clock since their start. A run that
-- waits for a worker, and a clock that jumps, use none of it.
ALTER TABLE runs ADD COLUMN worked_ms INTEGER NOT NULL DEFAULT 0;
-- The executed time of each run in `running`, in the same order, with every heartbeat.
ALTER TABLE workers ADD COLUMN worked_ms TEXT NOT NULL DEFAULT '[]';

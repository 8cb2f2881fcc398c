-- Whose caller waits for the end of a run: whoever ends it tells this control plane by name. A hint, and never more: who is not told looks for himself.
ALTER TABLE runs ADD COLUMN awaited_by BLOB;
